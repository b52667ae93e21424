"""Each experiment answers its question with the values that theory gives; ranks are threads."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from samestep.bench.step_times import Problem
from samestep.ranks.world.thread_world import run_ranks
from samestep_lab.experiments import (
    algorithms,
    backends,
    batch_size,
    checkpoint,
    collectives,
    hello,
    one_parameter,
    padding,
    precision,
    ring,
    serial_first,
    shuffling,
    synchronizers,
    threads,
    who_sees_what,
)
from samestep_lab.experiments.experiment import Setup

TWO = Setup(workers=2, ranks=run_ranks)


def on(workers):
    return replace(TWO, workers=workers)


def test_every_rank_receives_the_tensor_of_rank_0():
    ranks = hello.run(on(4)).values["ranks"]

    assert [(one["rank"], one["before"], one["after"]) for one in ranks] == [
        (0, 0.0, 0.0),
        (1, 1.0, 0.0),
        (2, 1.0, 0.0),
        (3, 1.0, 0.0),
    ]


def test_summed_gradients_give_1_4_and_averaged_ones_1_7():
    values = one_parameter.run(TWO).values

    assert values["gradients"] == [4.0, 2.0]
    assert values["parameters"] == {
        "gradients by sum": 1.4,
        "gradients by mean": 1.7,
        "samestep, bucketed": 1.7,
        "one process, sum of losses": 1.4,
        "one process, mean of losses": 1.7,
    }
    assert values["ranks_agree"]


@pytest.mark.parametrize(
    ("workers", "naive", "tree", "halving"),
    [(2, 1, 1, 1.0), (3, 2, 2, None), (4, 3, 2, 1.5), (8, 7, 3, 1.75)],
)
def test_collectives_take_the_rounds_and_bytes_of_their_formulas(workers, naive, tree, halving):
    values = collectives.run(on(workers)).values
    costs = values["costs"]

    def rounds_and_most(name):
        return costs[name]["rounds"], max(costs[name]["sent"])

    assert set(values["right"]) == {"naive", "tree", "ring", "halving_doubling"}
    assert rounds_and_most("all-reduce, naive") == (2 * naive, workers - 1)
    assert costs["all-reduce, tree"]["rounds"] == 2 * tree
    assert rounds_and_most("all-reduce, ring") == (
        2 * (workers - 1),
        pytest.approx(2 * (workers - 1) / workers),
    )
    assert rounds_and_most("all-gather, ring") == (workers - 1, pytest.approx((workers - 1) / workers))
    if halving is not None:
        assert rounds_and_most("all-reduce, halving_doubling") == (2 * tree, halving)


def test_schedules_that_do_not_fit_together_are_refused():
    lonely = [collectives.NAIVE.combine(1, 2), []]

    with pytest.raises(AssertionError):
        collectives.rounds_of(lonely)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_ring_of_whole_tensors_sends_n_times_as_much_and_its_ranks_differ(workers):
    values = ring.run(on(workers), seconds=0.01).values

    def sent(name):
        return max(values[name]["sent_tensors"])

    assert sent("ring") == pytest.approx(2 * (workers - 1) / workers, rel=1e-5)
    assert sent("ring of whole tensors") == 2 * (workers - 1)
    assert sent("naive") == workers - 1
    assert values["ring"]["different_results"] == values["naive"]["different_results"] == 1
    assert values["ring of whole tensors"]["different_results"] == (1 if workers == 2 else workers)


def test_samples_change_the_rank_with_set_epoch_alone():
    values = who_sees_what.run(TWO).values
    samples = values["samples"]

    # The figures that the article on CIFAR-10 prints.
    assert samples["DistributedSampler and set_epoch"] == [
        [[4, 7, 2, 1], [5, 2, 7, 1]],
        [[0, 3, 5, 6], [4, 6, 3, 0]],
    ]
    assert samples["DistributedSampler"][0] == [[4, 7, 2, 1]] * 2
    assert values["moved"]["DistributedSampler"] == 0 < values["moved"]["DistributedSampler and set_epoch"]
    assert set(values["repeated"].values()) == {0}


def test_samplers_that_pad_repeat_samples():
    repeated = who_sees_what.run(on(3)).values["repeated"]

    assert repeated["DistributedSampler"] == 1
    assert repeated["samestep.UnpaddedSampler"] == 0


def test_padded_evaluation_counts_10002_samples():
    values = padding.run(on(2), samples=200).values
    found = {(one["workers"], one["evaluation"]): one for one in values["evaluations"]}

    assert found[3, "padded"]["of_10000"] == 10_002
    assert found[3, "padded"]["per_rank_of_10000"] == [3334] * 3
    assert found[3, "exact"]["per_rank_of_10000"] == [3334, 3333, 3333]
    assert found[7, "padded"]["of_10000"] == 10_003
    assert found[7, "exact"]["of_10000"] == 10_000
    assert [found[size, "padded"]["total"] for size in (2, 3, 7)] == [1798, 1797, 1799]
    assert {one["total"] for key, one in found.items() if key[1] == "exact"} == {1797}
    exact = {one["accuracy"] for key, one in found.items() if key[1] == "exact"}
    assert exact == {values["accuracy"]}
    assert found[2, "padded"]["accuracy"] != found[2, "exact"]["accuracy"]


def test_shuffling_reports_an_interval_over_seeds():
    values = shuffling.run(TWO, seeds=2, epochs=2, samples=200).values

    assert len(values["new_order"]) == len(values["same_order"]) == 2
    assert values["new_order"] != values["same_order"]
    differences = [new - same for new, same in zip(values["new_order"], values["same_order"], strict=True)]
    assert values["difference"] == pytest.approx(sum(differences) / 2)
    assert values["half_interval"] == pytest.approx(12.706 * abs(differences[0] - differences[1]) / 2)


def test_a_batch_per_worker_takes_half_of_the_steps_on_2_workers():
    values = batch_size.run(TWO, seeds=1, epochs=1, samples=256).values

    assert {name: (one["batch_size"], one["steps"]) for name, one in values.items()} == {
        "one worker": (64, 4),
        "global batch kept": (64, 4),
        "batch per worker, rate scale none": (128, 2),
        "batch per worker, rate scale linear": (128, 2),
        "batch per worker, rate scale sqrt": (128, 2),
    }
    assert values["batch per worker, rate scale linear"]["lr"] == pytest.approx(0.04)
    assert values["one worker"]["accuracies"] == pytest.approx(
        values["global batch kept"]["accuracies"], abs=2e-3
    )


def test_synchronizers_that_the_ranks_can_run_are_measured():
    small = Problem(batch_per_worker=2, shape=(1, 8, 8))
    values = synchronizers.run(TWO, problem=small, seconds=0.01).values

    assert set(values) == {"alone", "reference", "bucketed", "exact"}
    assert values["alone"]["efficiency"] == 1.0


def test_torch_loads_no_other_prefix_and_samestep_loads_all():
    found = checkpoint.run(on(1)).values["combinations"]

    assert {one["saved_as"]: one["first_key"].partition("layer1")[0] for one in found} == {
        "bare": "",
        "DataParallel": "module.",
        "compiled": "_orig_mod.",
    }
    assert all(one["samestep"] for one in found)
    assert [one["torch"] for one in found] == [one["saved_as"] == one["loaded_into"] for one in found]


def test_every_precision_is_trained():
    values = precision.run(TWO, seeds=1, epochs=1, samples=128).values

    assert list(values) == ["fp32", "bf16", "fp16", "bf16-true", "fp16-true"]
    assert all(0 < one["accuracies"][0] <= 1 for one in values.values())


def test_data_paths_yield_the_same_samples():
    images, _ = serial_first.image_sets(TWO, 10)
    one_by_one = serial_first.Samples(images)
    wanted, labels = serial_first.pixels(images)

    assert len(one_by_one) == 10
    assert all(torch.equal(one_by_one[k][0], wanted[k]) for k in range(10))
    assert [int(one_by_one[k][1]) for k in range(10)] == labels.tolist()


def test_serial_changes_are_measured_against_the_first():
    changes = ("as it is", "channels_last")
    values = serial_first.run(on(1), model="resnet9:2", changes=changes, rounds=1).values

    assert list(values["step_s"]) == list(changes)
    assert len(values["loading_s_per_sample"]) == 2


def test_numbers_of_threads_follow_from_the_cores():
    before = torch.get_num_threads()

    assert list(threads.counts(8, 2).values()) == [1, 4, 8, 16]
    values = threads.run(on(1), rounds=1, steps=1).values
    assert values["share"] == values["cores"]
    assert values["share"] in values["threads"]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("accelerators", "names", "has_ip", "backend"),
    [
        (2, ["nccl", "gloo"], True, "nccl"),
        (2, ["xccl", "gloo"], True, "xccl"),
        (0, ["gloo"], True, "gloo"),
        (0, ["gloo", "mpi"], True, "gloo"),
        (0, ["gloo", "mpi"], False, "mpi"),
        (0, ["gloo"], False, "gloo"),
    ],
)
def test_the_back_end_follows_from_device_and_network(accelerators, names, has_ip, backend):
    row = backends.applies_here(accelerators=accelerators, names=names, has_ip=has_ip)

    assert backends.ROWS[row][2] == backend


def test_this_machine_has_one_back_end_that_applies():
    values = backends.run(TWO).values

    assert "gloo" in values["available"]
    assert values["applies"] in ("nccl", "xccl", "gloo", "mpi")


def test_the_fastest_all_reduce_is_one_that_was_measured():
    values = algorithms.run(TWO, sizes=(1024,), seconds=0.01).values

    names = {row["algorithm"] for row in values["rows"]}
    assert names == {"native", "naive", "tree", "ring", "halving_doubling"}
    (fastest,) = values["fastest"]
    assert fastest["bytes"] == 1024
    assert {*fastest["algorithms"]} <= names


def test_pairs_of_gpus_that_nvlink_connects_are_read_from_the_matrix_of_nvidia_smi():
    matrix = """        GPU0  GPU1  GPU2  NIC0  CPU Affinity
GPU0     X    NV12  SYS   PXB   0-15
GPU1    NV12   X    PIX   SYS   0-15
GPU2    SYS   PIX    X    NODE  16-31
NIC0    PXB   SYS   NODE   X
"""

    assert backends.nvlink_pairs(matrix) == [(0, 1)]
    assert backends.nvlink_pairs("") == []


def test_steps_that_are_faster_with_communication_than_without_are_called_noise():
    def found(sync, *quartiles):
        return SimpleNamespace(sync=sync, efficiency_quartiles=quartiles)

    rows = [found("flat", 1.1, 1.6), found("ddp", 0.9, 1.0), found("exact", 0.5, 0.8)]
    equal, faster = synchronizers.noise([found("alone", 1.0, 1.0), *rows]).split(". ", 1)

    assert ("ddp" in equal, "ddp" in faster) == (True, False)
    assert ("flat" in equal, "flat" in faster) == (False, True)
    assert not any(name in equal + faster for name in ("alone", "exact"))
    assert synchronizers.noise(rows[-1:]) == ""


@pytest.mark.parametrize(
    ("seconds", "numbers"),
    [
        ({1: (2.0, 1.9, 2.1), 2: (1.0, 0.9, 1.1), 4: (3.0, 2.9, 3.1)}, [2, 4, 3.0, 2]),
        ({1: (1.0, 0.9, 1.1), 2: (1.05, 1.0, 1.2), 4: (3.0, 2.9, 3.1)}, [1, 2, 4, 2.86, 2]),
        ({1: (1.0, 0.9, 1.1), 2: (1.2, 1.15, 1.6), 4: (1.3, 1.2, 1.4)}, [1]),
    ],
)
def test_numbers_of_threads_differ_where_their_quartiles_do(seconds, numbers):
    values = {
        count: {"median_s": middle, "quartiles_s": spread} for count, (middle, *spread) in seconds.items()
    }

    assert [float(one) for one in re.findall(r"\d+(?:\.\d+)?", threads.answer(values, share=2))] == numbers
