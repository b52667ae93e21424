"""Gradients averaged by each all-reduce are the serial ones, with equal bits on all ranks."""

import pytest
import torch

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.algorithm_choice import ALGORITHMS, AUTO, Measured
from samestep.ranks.collectives.algorithms import by_algorithm
from support.backward_cases import assert_equal_gradients, gradients, network, plain, samples, share_of

TEXTS = [*ALGORITHMS, "tree,ring:64,shared_memory:128,native:256"]

SHARES = [3, 2, 2]


def carried(world, text, sync):
    """Return the synchronizer, and the gradients of two steps."""
    model, found = network(), []
    with replicate(model, by_algorithm(world, text), sync=sync, bucket_bytes=200, check_every=1) as replicas:
        for step in range(2):
            model.zero_grad()
            plain(model, *share_of(world, samples() + step, SHARES))
            found.append(gradients(model))
        return replicas.sync, found


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_are_the_serial_ones_with_equal_bits(processes, text):
    for sync in ("auto", "reference"):
        (used, first), *others = processes.run(carried, 3, text, sync)

        assert used == ("bucketed" if sync == "auto" else sync)
        for step, found in enumerate(first):
            model = network()
            plain(model, samples() + step, 1.0)
            assert_equal_gradients(found, gradients(model))
            for _, other in others:
                assert all(torch.equal(found[name], other[step][name]) for name in found)


def choice_of_auto(world, folders):
    """Return the choice of `auto` on a rank whose own file has other measurements, or that has none."""
    with env.exported({"XDG_CACHE_HOME": folders[world.place.rank]}):
        return by_algorithm(world, AUTO).crossovers.text


def test_auto_uses_the_measurements_of_rank_0(processes, tmp_path):
    folders = [str(tmp_path / str(rank)) for rank in range(3)]
    for rank, name in enumerate(["tree", "ring"]):
        with env.exported({"XDG_CACHE_HOME": folders[rank]}):
            Measured(ranks=3, hosts=1, device="cpu").save([(4, name), (64, "native")])

    assert processes.run(choice_of_auto, 3, folders) == ["tree,native:64"] * 3


def refused(world, folder):
    with env.exported({"XDG_CACHE_HOME": folder}), pytest.raises(UsageError) as told:
        by_algorithm(world, AUTO)
    return str(told.value)


def test_without_measurements_auto_is_refused_on_all_ranks_with_the_command_to_run(processes, tmp_path):
    first, second = processes.run(refused, 2, str(tmp_path))

    assert first == second
    assert first.endswith("Measure once with: samestep bench all-reduce -n 2 --save")
