"""Faults of a script on one worker are found by comparing two runs of it."""

import pytest

from samestep.verify.notes import not_reached
from samestep.verify.run_record import RunRecord
from samestep.verify.serial_findings import baseline_findings
from samestep.verify.trace import Facts, Step, Trace

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
