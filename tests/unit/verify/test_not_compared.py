"""Results that neither run records are not compared, and without any the verdict is inconclusive."""

from dataclasses import replace

import pytest

from samestep.verify.compare import Comparison
from samestep.verify.notes import not_compared, not_reached, nothing_compared
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Step, Trace
from samestep.verify.verdict import verdict_of


def run(size=1, *, losses=(), parameters=(), **facts):
    step = Step(index=0, samples=[1.0], losses=[*losses], before=[*parameters], after=[*parameters])
    traces = [Trace(Facts(rank=rank, **facts), [step], 1) for rank in range(size)]
    return RunRecord(traces, runs_once=False)


def compared(**quantities):
    return Comparison(run(**quantities), run(2, **quantities), run(**quantities))


def test_runs_without_loss_and_parameters_are_inconclusive():
    nothing = nothing_compared(compared())
    assert (nothing.cause, nothing.gravity, nothing.workers) == ("not-compared", "inconclusive", 2)
    assert verdict_of([nothing]) == "inconclusive"


@pytest.mark.parametrize("known", [{"losses": [0.5]}, {"parameters": [1.0]}])
def test_either_the_loss_or_the_parameters_can_be_compared(known):
    assert nothing_compared(compared(**known)) is None


def test_a_loss_that_one_run_lacks_is_not_compared():
    known, unknown = run(losses=[0.5]), run(2)
    assert list(not_compared(Comparison(known, unknown, known))) == ["loss"]
    assert not_compared(compared(losses=[0.5])) == {}


@pytest.mark.parametrize(("printed", "missing"), [("epoch 1\n", ["evaluation"]), ("accuracy 0.5\n", [])])
def test_a_padded_evaluation_counts_only_by_a_printed_fraction(printed, missing):
    usual = run(losses=[0.5], printed=printed, evaluated=[1.0, 2.0, 3.0])
    seen = run(2, losses=[0.5], printed=printed)
    shares = ([1.0, 3.0], [2.0, 1.0])
    traces = [
        replace(one, facts=replace(one.facts, evaluated=share))
        for one, share in zip(seen.traces, shares, strict=True)
    ]
    assert list(not_compared(Comparison(usual, replace(seen, traces=traces), usual))) == missing


def test_parts_that_one_worker_does_not_reach_are_named():
    assert set(not_reached(run())) == {"evaluation", "second-epoch"}
    steps = [Step(index=k, samples=[1.0], evaluated=[2.0]) for k in range(2)]
    assert not_reached(RunRecord([Trace(Facts(rank=0), steps, 2)], runs_once=False)) == {}
