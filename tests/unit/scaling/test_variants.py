"""Variants of one training: in what they differ, and whether they can."""

from dataclasses import replace

import pytest

from samestep.scaling.conclude import conclude
from samestep.scaling.study import Point, Study
from support.clocked_runs import clocked, concluded, scaled


def variants(repeats: int, *, within_backward: bool = False):
    """Return runs of two variants; the exchange of b takes 12 ms, not 1, and is seen or within backward."""
    for seed in range(repeats):
        for workers in (1, 2):
            own, exchange = scaled(1 / workers), 0.012 * (workers > 1)
            less = clocked(workers, own=own, exchange=exchange / 12, noise=0.01, seed=seed, variant="sync=a")
            if within_backward:
                own, exchange = dict(own, backward=own["backward"] + exchange), 0.0
            more = clocked(workers, own=own, exchange=exchange, noise=0.01, seed=seed + 9, variant="sync=b")
            yield from (less, more)


def test_one_worker_that_counts_in_two_modes_is_compared_once_and_first():
    runs = list(variants(3))
    runs += [
        clocked(2, batch=128, seed=seed, variant=name) for seed in range(3) for name in ("sync=a", "sync=b")
    ]

    said = concluded(runs).verdict.comparisons

    assert [sentence.split(":")[0] for sentence in said] == ["1 worker", "2 workers", "2 workers, weak"]


def test_the_mode_is_told_where_there_are_two():
    runs = [clocked(1, variant=name) for name in "ab"] + [clocked(2, variant=name) for name in "ab"]
    weak = [clocked(2, batch=128, variant=name) for name in "ab"]

    def labels(of):
        return [sentence.split(":")[0] for sentence in concluded(of).verdict.others]

    assert labels(runs) == ["b"]
    assert labels(runs + weak) == ["strong b", "weak a", "weak b"]
    assert concluded(runs + weak).verdict.engineer.startswith("strong a: ")


def test_what_is_compared_already_is_not_advised():
    assert "--compare" not in concluded(list(variants(3))).verdict.others[0]


def test_why_variants_differ_is_told():
    verdict = concluded(list(variants(3))).verdict
    alone, two = verdict.comparisons

    assert verdict.manager.startswith("sync=a: 2 workers train")
    assert verdict.others[0].startswith("sync=b: 2 workers: 1.60x, 80 %.")
    assert alone.startswith("1 worker: no difference can be told: sync=")
    assert two.startswith("2 workers: sync=a is 22 % faster than sync=b: exposed exchange 1.")
    assert two.endswith(" ms instead of 12 ms of a step.")


def test_of_one_repeat_each_no_difference_is_claimed():
    assert (
        concluded(list(variants(1)))
        .verdict.comparisons[1]
        .startswith("2 workers: sync=a was 22 % faster than sync=b; without several runs of each")
    )


def test_what_cannot_be_told_of_several_variants_is_said_once():
    once = [clocked(2, own=scaled(1 + 0.1 * k), variant=name) for k, name in enumerate("abc")]
    (said,) = concluded(once).verdict.comparisons
    assert said.startswith("2 workers: a was 10 % faster than b and 20 % faster than c; without several runs")

    wide = [
        clocked(2, own=scaled(much + 0.01 * k), variant=name)
        for k, name in enumerate("abc")
        for much in (1, 3)
    ]
    (said,) = concluded(wide).verdict.comparisons
    assert said.startswith("2 workers: no difference between a and b or c can be told: their runs differ")


@pytest.mark.parametrize(
    ("workers", "names", "backend", "said"),
    [
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "gloo", "and these runs exchange by gloo."),
        (1, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "", "and one worker exchanges nothing."),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "nccl", ""),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "", ""),  # nobody says what carries them
        (2, ["env:NCCL_ALGO=Ring", "env:SPAM=1 env:NCCL_ALGO=Tree"], "gloo", ""),
        (2, ["sync=ddp env:NCCL_ALGO=Ring", "sync=flat env:NCCL_ALGO=Tree"], "gloo", ""),
        (2, ["env:NCCL_X=1", "env:NCCL_X=2"], "shared memory", "and these runs exchange by shared memory."),
        (2, ["env:GLOO_X=1", "env:GLOO_X=2"], "shared memory", ""),  # batch norm's may go by Gloo
        (2, ["env:GLOO_X=1", "env:GLOO_X=2"], "xccl", "and these runs exchange by xccl."),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "undefined", ""),  # of a group for all devices
    ],
)
def test_variants_of_a_variable_that_nobody_reads_cannot_differ(workers, names, backend, said):
    runs = [
        clocked(workers, variant=name, backend=backend, noise=0.1, seed=seed)
        for seed, name in enumerate(names)
    ]

    (sentence,) = concluded(runs).verdict.comparisons

    assert sentence.endswith(said or "without several runs of each nobody can tell whether it is.")
    assert ("cannot differ, and what they differ by is chance: " in sentence) == bool(said)


def test_runs_that_count_for_several_variants_are_not_compared():
    runs = [replace(clocked(1, seed=k, noise=0.1), variant=name) for k in range(3) for name in ("a", "b")]

    assert concluded(runs).verdict.comparisons == (
        "1 worker: a and b have the same runs, since one worker exchanges nothing.",
    )


def test_an_exchange_that_one_variant_hides_in_backward_is_compared_with_it():
    said = concluded(list(variants(3, within_backward=True))).verdict.comparisons[1]

    assert said.startswith(
        "2 workers: sync=a is 22 % faster than sync=b: backward with the exchange 31 ms instead"
    )


def test_points_without_phases_are_compared_by_their_rates():
    points = [
        Point(workers=2, variant=name, samples_per_second=rate, samples_per_second_low=rate - 1,
              samples_per_second_high=rate + 1, speedup=1.0, efficiency=1.0)
        for name, rate in (("a", 100.0), ("b", 50.0))
    ]  # fmt: skip

    assert conclude(Study(target="x", points=tuple(points))).verdict.comparisons == (
        "2 workers: a is 100 % faster than b.",
    )
