"""Faults that two runs of a script show are found, and what was not compared is reported."""

from dataclasses import replace

import pytest

from samestep.verify.compare import Comparison
from samestep.verify.run_record import RunRecord
from samestep.verify.script_findings import (
    baseline_findings,
    not_compared,
    not_reached,
    nothing_compared,
    of_files,
)
from samestep.verify.trace import Facts, Step, Trace
from samestep.verify.verdict import verdict_of

NAN = float("nan")


def run(*, losses=(2.0, 1.0, 0.5), before=1.0, samples=0.0, epsilon=1e-7):
    """Return a run on one worker."""
    steps = [
        Step(
            index=k,
            samples=[samples + k],
            losses=[] if loss is None else [loss],
            before=[before],
            after=[before],
        )
        for k, loss in enumerate(losses)
    ]
    return RunRecord([Trace(Facts(rank=0, epsilon=epsilon), steps, len(steps))], runs_once=False)


def found(reference, control):
    return [one.cause for one in baseline_findings(reference, control)]


def test_differences_by_rounding_are_no_finding():
    assert found(run(), run(losses=(2.000001, 1.01, 0.4), before=1.000001)) == []


@pytest.mark.parametrize("how", [{"before": 1.1}, {"losses": (2.1, 1.0, 0.5)}])
def test_a_second_run_that_starts_differently_is_unseeded(how):
    assert found(run(), run(**how)) == ["unseeded"]


@pytest.mark.parametrize(
    ("how", "deviation", "values"),
    [
        ({"before": 1.5}, 0.5, ["parameters", "5.0e-01", "1.6e-04"]),
        ({"losses": (2.1, 1.0)}, 0.05, ["loss", "2.0", "2.1", "5.0e-02"]),
        ({"losses": (None, 1.0)}, None, ["loss", "2.0", "none", "inf"]),
        ({"losses": ()}, None, ["3 steps", "0 steps"]),
    ],
)
def test_a_different_start_is_reported_with_its_values(how, deviation, values):
    (one,) = baseline_findings(run(), run(**how))
    assert one.cause == "unseeded"
    assert one.max_relative_deviation == pytest.approx(deviation)
    assert [value for value in values if value not in one.message] == []


@pytest.mark.parametrize("how", [{"before": 1.5}, {"samples": 9.0}, {"losses": ()}])
def test_the_baseline_of_several_workers_names_their_number(how):
    """Only this finds a report on a golden run of 3 workers that names 1 worker."""
    (finding,) = baseline_findings(replace(run(), workers=3), run(**how))
    assert finding.workers == 3
    assert "two runs on 3 workers" in finding.message


@pytest.mark.parametrize(
    ("loss", "again", "epsilon"), [(1.2390123755958473, 1.2390123751821944, 2.2e-16), (1.0, 1.0003, 1.2e-7)]
)
def test_a_difference_in_the_last_digits_is_no_missing_seed(loss, again, epsilon):
    (one,) = baseline_findings(run(losses=(loss,), epsilon=epsilon), run(losses=(again,), epsilon=epsilon))
    assert (one.cause, one.kind) == ("unsteady", "exception")
    assert f" {loss} and {again}:" in one.message


def test_half_precision_has_too_few_digits_to_be_unsteady():
    assert found(run(epsilon=1e-3), run(losses=(2.05, 1.0, 0.5), epsilon=1e-3)) == ["unseeded"]


def test_different_samples_are_unseeded_data():
    assert found(run(), run(samples=0.5, before=1.1)) == ["unseeded-data"]


@pytest.mark.parametrize("losses", [(NAN, NAN, NAN), (2.0, NAN, None)])
def test_a_loss_that_is_nan_in_the_end_proves_nothing(losses):
    assert found(run(losses=losses), run(losses=losses)) == ["nan-loss"]


def test_a_loss_that_is_nan_only_before_the_end_is_no_finding():
    assert found(run(losses=(NAN, 1.0, None)), run(losses=(NAN, 1.0, None))) == []


def test_parts_that_the_steps_do_not_reach_are_not_compared():
    again = run()
    again.traces[0].steps[2].samples = [0.0]
    again.traces[0].facts.evaluated = [1.0]
    assert list(not_reached(run())) == ["evaluation", "second-epoch"]
    assert not_reached(again) == {}


def run_on(size=1, *, losses=(), parameters=(), **facts):
    step = Step(index=0, samples=[1.0], losses=[*losses], before=[*parameters], after=[*parameters])
    traces = [Trace(Facts(rank=rank, **facts), [step], 1) for rank in range(size)]
    return RunRecord(traces, runs_once=False)


def compared(**quantities):
    return Comparison(run_on(**quantities), run_on(2, **quantities), run_on(**quantities))


def test_runs_without_loss_and_parameters_are_inconclusive():
    (nothing,) = nothing_compared(compared())
    assert (nothing.cause, nothing.gravity, nothing.workers) == ("not-compared", "inconclusive", 2)
    assert verdict_of([nothing]) == "inconclusive"


@pytest.mark.parametrize("known", [{"losses": [0.5]}, {"parameters": [1.0]}])
def test_either_the_loss_or_the_parameters_can_be_compared(known):
    assert nothing_compared(compared(**known)) == []


def test_a_loss_that_one_run_lacks_is_not_compared():
    known, unknown = run_on(losses=[0.5]), run_on(2)
    assert list(not_compared(Comparison(known, unknown, known))) == ["loss"]
    assert not_compared(compared(losses=[0.5])) == {}


@pytest.mark.parametrize(("printed", "missing"), [("epoch 1\n", ["evaluation"]), ("accuracy 0.5\n", [])])
def test_a_padded_evaluation_counts_only_by_a_printed_fraction(printed, missing):
    usual = run_on(losses=[0.5], printed=printed, evaluated=[1.0, 2.0, 3.0])
    seen = run_on(2, losses=[0.5], printed=printed)
    shares = ([1.0, 3.0], [2.0, 1.0])
    traces = [
        replace(one, facts=replace(one.facts, evaluated=share))
        for one, share in zip(seen.traces, shares, strict=True)
    ]
    assert list(not_compared(Comparison(usual, replace(seen, traces=traces), usual))) == missing


def test_parts_that_one_worker_does_not_reach_are_named():
    assert set(not_reached(run_on())) == {"evaluation", "second-epoch"}
    steps = [Step(index=k, samples=[1.0], evaluated=[2.0]) for k in range(2)]
    assert not_reached(RunRecord([Trace(Facts(rank=0), steps, 2)], runs_once=False)) == {}


@pytest.mark.parametrize(
    ("written", "codes"),
    [
        (["out/run-20261129-101500/a.pt", "out/run-20261129-101502/b.pt"], ["folders-by-clock"]),
        (["out/run-20261129-101500/a.pt", "out/run-20261129-101500/b.pt"], []),
        (["out/rank0/a.pt", "out/rank1/a.pt"], []),
        (["out/mp_rank_00/a.pt", "out/mp_rank_01/a.pt"], []),
        (["logs/10/a.pt", "logs/1/a.pt"], []),
        (["a.pt", "a.pt"], ["several-writers"]),
        (["a-0.pt", "a-1.pt"], []),
    ],
)
def test_files_of_ranks_that_another_rank_writes_or_cannot_find(written, codes):
    traces = [Trace(Facts(rank=rank, written=[path]), [], 0) for rank, path in enumerate(written)]
    assert [finding.cause for finding in of_files(RunRecord(traces))] == codes
