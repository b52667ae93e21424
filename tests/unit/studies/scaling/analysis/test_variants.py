"""Variants of one training are compared: the fastest, the reason, and whether they can differ at all."""

from dataclasses import replace

import pytest

from samestep.studies.scaling.analysis.study import Point, Study
from samestep.studies.scaling.analysis.verdict import conclude
from support.clocked_runs import clocked, codes, concluded, scaled


def variants(repeats: int, *, within_backward: bool = False):
    """Return runs of two variants; the communication of b takes 12 ms, not 1, exposed or within backward."""
    for seed in range(repeats):
        for workers in (1, 2):
            own, comm = scaled(1 / workers), 0.012 * (workers > 1)
            less = clocked(workers, own=own, comm=comm / 12, noise=0.01, seed=seed, variant="sync=a")
            if within_backward:
                own, comm = dict(own, backward=own["backward"] + comm), 0.0
            more = clocked(workers, own=own, comm=comm, noise=0.01, seed=seed + 9, variant="sync=b")
            yield from (less, more)


def test_one_worker_in_two_modes_is_compared_once_and_first():
    runs = list(variants(3))
    runs += [
        clocked(2, batch=128, seed=seed, variant=name) for seed in range(3) for name in ("sync=a", "sync=b")
    ]

    found = [(one.workers, one.mode) for one in concluded(runs).verdict.findings if one.kind == "comparison"]

    assert found == [((1,), "strong"), ((2,), "strong"), ((2,), "weak")]


def test_the_mode_is_named_if_there_are_two():
    runs = [clocked(1, variant=name) for name in "ab"] + [clocked(2, variant=name) for name in "ab"]
    weak = [clocked(2, batch=128, variant=name) for name in "ab"]

    def labels(of):
        return [sentence.split(":")[0] for sentence in concluded(of).verdict.others]

    assert labels(runs) == ["b"]
    assert labels(runs + weak) == ["strong b", "weak a", "weak b"]
    assert concluded(runs + weak).verdict.engineer.startswith("strong a: ")


def test_a_setting_that_is_compared_is_not_advised():
    advised = [code for code, _ in codes(concluded(list(variants(3))).verdict, "advice")]
    assert "larger-batch" in advised
    assert "compare-sync" not in advised


def test_the_phase_that_makes_the_difference_is_named():
    verdict = concluded(list(variants(3))).verdict
    _, two = verdict.comparisons

    assert verdict.manager.startswith("sync=a: 2 workers train")
    assert verdict.others[0].startswith("sync=b: 2 workers: 1.60x over one worker with 1 thread, 80 %.")
    assert codes(verdict, "comparison") == [("no-difference", (1,)), ("faster", (2,))]
    assert two.startswith("2 workers: sync=a is 22 % faster than sync=b: exposed communication 1.")
    assert "12 ms" in two


def test_single_runs_have_no_certain_difference():
    verdict = concluded(list(variants(1))).verdict

    assert codes(verdict, "comparison") == [("single-runs", (1,)), ("single-runs", (2,))]
    assert "sync=a was 22 % faster than sync=b" in verdict.comparisons[1]


def test_an_inconclusive_result_of_several_variants_is_one_sentence():
    once = [clocked(2, own=scaled(1 + 0.1 * k), variant=name) for k, name in enumerate("abc")]
    verdict = concluded(once).verdict
    assert codes(verdict, "comparison") == [("single-runs", (2,))]
    assert "a was 10 % faster than b and 20 % faster than c" in verdict.comparisons[0]

    wide = [
        clocked(2, own=scaled(much + 0.01 * k), variant=name)
        for k, name in enumerate("abc")
        for much in (1, 3)
    ]
    verdict = concluded(wide).verdict
    assert codes(verdict, "comparison") == [("inconclusive", (2,))]
    assert "a and b or c" in verdict.comparisons[0]


@pytest.mark.parametrize(
    ("workers", "names", "backend", "differ"),
    [
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "gloo", False),
        (1, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "", False),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "nccl", True),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "", True),  # the backend is unknown
        (2, ["env:NCCL_ALGO=Ring", "env:SPAM=1 env:NCCL_ALGO=Tree"], "gloo", True),
        (2, ["sync=ddp env:NCCL_ALGO=Ring", "sync=flat env:NCCL_ALGO=Tree"], "gloo", True),
        (2, ["env:NCCL_X=1", "env:NCCL_X=2"], "shared memory", False),
        (2, ["env:GLOO_X=1", "env:GLOO_X=2"], "shared memory", True),  # batch norm can use Gloo
        (2, ["env:GLOO_X=1", "env:GLOO_X=2"], "xccl", False),
        (2, ["env:NCCL_ALGO=Ring", "env:NCCL_ALGO=Tree"], "undefined", True),  # of a group for all devices
    ],
)
def test_variants_of_a_variable_that_no_library_reads_cannot_differ(workers, names, backend, differ):
    runs = [
        clocked(workers, variant=name, backend=backend, noise=0.1, seed=seed)
        for seed, name in enumerate(names)
    ]

    found = codes(concluded(runs).verdict, "comparison")

    assert found == [("single-runs" if differ else "cannot-differ", (workers,))]


def test_runs_of_several_variants_are_not_compared():
    runs = [replace(clocked(1, seed=k, noise=0.1), variant=name) for k in range(3) for name in ("a", "b")]

    assert codes(concluded(runs).verdict, "comparison") == [("same-runs", (1,))]


def test_communication_within_backward_is_compared_together_with_backward():
    two = concluded(list(variants(3, within_backward=True))).verdict.comparisons[1]

    assert two.startswith("2 workers: sync=a is 22 % faster than sync=b: backward with communication 31 ms")


def test_points_without_phases_are_compared_by_their_rates():
    points = [
        Point(workers=2, variant=name, samples_per_second=rate, samples_per_second_low=rate - 1,
              samples_per_second_high=rate + 1, speedup=1.0, efficiency=1.0)
        for name, rate in (("a", 100.0), ("b", 50.0))
    ]  # fmt: skip

    assert conclude(Study(target="x", points=tuple(points))).verdict.comparisons == (
        "2 workers: a is 100 % faster than b.",
    )
