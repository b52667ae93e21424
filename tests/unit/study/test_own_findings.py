"""What is wrong with a script on one worker already is found in two runs of it."""

import pytest

from samestep.study.seen import Seen
from samestep.study.verify import _not_seen, _own_findings
from samestep.watch.trace import Facts, Step, Trace

NAN = float("nan")


def seen(*, losses=(2.0, 1.0, 0.5), before=1.0, samples=0.0):
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
    return Seen([Trace(Facts(rank=0, epsilon=1e-7), steps, len(steps))], is_replicated=False)


def found(reference, control):
    return [one.cause for one in _own_findings(reference, control)]


def test_what_only_rounding_makes_differ_is_no_finding():
    assert found(seen(), seen(losses=(2.000001, 1.01, 0.4), before=1.000001)) == []


@pytest.mark.parametrize("how", [{"before": 1.1}, {"losses": (2.1, 1.0, 0.5)}])
def test_a_run_that_begins_otherwise_the_second_time_is_unseeded(how):
    assert found(seen(), seen(**how)) == ["unseeded"]


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
