"""What is wrong with a script on one worker already is found in two runs of it."""

import pytest

from samestep.study.own_findings import own_findings
from samestep.study.seen import Seen
from samestep.study.verify import _not_seen
from samestep.watch.trace import Facts, Step, Trace

NAN = float("nan")


def seen(*, losses=(2.0, 1.0, 0.5), before=1.0, samples=0.0, epsilon=1e-7):
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
    return Seen([Trace(Facts(rank=0, epsilon=epsilon), steps, len(steps))], is_replicated=False)


def found(reference, control):
    return [one.cause for one in own_findings(reference, control)]


def test_what_only_rounding_makes_differ_is_no_finding():
    assert found(seen(), seen(losses=(2.000001, 1.01, 0.4), before=1.000001)) == []


@pytest.mark.parametrize("how", [{"before": 1.1}, {"losses": (2.1, 1.0, 0.5)}])
def test_a_run_that_begins_otherwise_the_second_time_is_unseeded(how):
    assert found(seen(), seen(**how)) == ["unseeded"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"before": 1.5},
            "other parameters: a relative difference of 5.0e-01, where rounding explains 1.6e-04",
        ),
        ({"losses": (2.1, 1.0)}, "another loss, 2.0 and 2.1: a relative difference of 5.0e-02"),
        ({"losses": (None, 1.0)}, "another loss, 2.0 and none: a relative difference of inf"),
        ({"losses": ()}, "one made 3 steps, the other none"),
    ],
)
def test_what_begins_otherwise_is_told_with_its_values(how, said):
    (one,) = own_findings(seen(), seen(**how))
    assert one.cause == "unseeded"
    assert said in one.message


@pytest.mark.parametrize(
    ("loss", "again", "epsilon"), [(1.2390123755958473, 1.2390123751821944, 2.2e-16), (1.0, 1.0003, 1.2e-7)]
)
def test_a_difference_of_the_last_digits_is_not_taken_for_a_missing_seed(loss, again, epsilon):
    (one,) = own_findings(seen(losses=(loss,), epsilon=epsilon), seen(losses=(again,), epsilon=epsilon))
    assert (one.cause, one.is_exception) == ("unsteady", True)
    assert f"another loss, {loss} and {again}: " in one.message


def test_in_half_precision_there_are_too_few_digits_to_tell():
    assert found(seen(epsilon=1e-3), seen(losses=(2.05, 1.0, 0.5), epsilon=1e-3)) == ["unseeded"]


def test_other_samples_are_named_as_such():
    assert found(seen(), seen(samples=0.5, before=1.1)) == ["unseeded-data"]


@pytest.mark.parametrize("losses", [(NAN, NAN, NAN), (2.0, NAN, None)])
def test_a_loss_that_is_nan_in_the_end_proves_nothing(losses):
    assert found(seen(losses=losses), seen(losses=losses)) == ["nan-loss"]


def test_a_loss_that_is_nan_for_a_while_or_of_no_step_is_none():
    assert found(seen(losses=(NAN, 1.0, None)), seen(losses=(NAN, 1.0, None))) == []


def test_what_the_steps_do_not_come_to_is_told():
    again = seen()
    again.traces[0].steps[2].samples = [0.0]
    again.traces[0].facts.evaluated = [1.0]
    assert _not_seen(seen()) == ["evaluation", "second epoch"]
    assert _not_seen(again) == []
