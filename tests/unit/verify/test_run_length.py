"""A run without a given number of steps is as long as an evaluation and a second epoch need."""

import pytest

from samestep.verify.run_length import (
    LEAST_STEPS,
    LEAST_STEPS_OF_SLOW_SCRIPTS,
    LEAST_STEPS_UNEVALUATED,
    MOST_STEPS,
    FixedLength,
    UntilEvaluated,
    WithinTime,
)
from samestep.verify.trace import Step


def steps(*, epoch, evaluates_after=()):
    """Yield the steps of an endless script with epochs of this many steps."""
    index = 0
    while True:
        is_first = index and index % epoch == 0
        evaluated = [-1.0] if is_first and index // epoch in evaluates_after else []
        yield Step(index=index, samples=[float(index % epoch)], evaluated=evaluated)
        index += 1


def length(limit, script):
    return next(step.index + 1 for step in script if limit.is_reached(step, optimizers=1))


def until_evaluated(*, s_per_step=0.0, limit_s=10.0):
    times = iter(range(10**6))
    return WithinTime(UntilEvaluated(), limit_s, clock=lambda: next(times) * s_per_step)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(steps(epoch=50, evaluates_after=(1,)), 51, id="evaluated"),
        pytest.param(steps(epoch=50, evaluates_after=(2,)), 101, id="evaluated-later"),
        pytest.param(steps(epoch=50), LEAST_STEPS_UNEVALUATED, id="not-evaluated"),
        pytest.param(steps(epoch=300), 600, id="not-evaluated-in-long-epochs"),
        pytest.param(steps(epoch=4, evaluates_after=(1,)), LEAST_STEPS, id="short-epochs"),
        pytest.param(steps(epoch=10**6), MOST_STEPS, id="endless"),
    ],
)
def test_a_run_lasts_into_the_second_epoch(script, expected):
    assert length(until_evaluated(), script) == expected


@pytest.mark.parametrize(
    ("s_per_step", "expected"), [(1.0, 11), (0.1, 101), (100.0, LEAST_STEPS_OF_SLOW_SCRIPTS)]
)
def test_time_limits_a_run(s_per_step, expected):
    assert length(until_evaluated(s_per_step=s_per_step, limit_s=10.0), steps(epoch=10**6)) == expected


@pytest.mark.parametrize(
    ("s_per_step", "expected"), [(0.0, 50), (1.0, 11), (100.0, LEAST_STEPS_OF_SLOW_SCRIPTS)]
)
def test_time_limits_a_run_of_as_many_steps_as_another(s_per_step, expected):
    times = iter(range(10**6))
    limit = WithinTime(FixedLength(50), 10.0, clock=lambda: next(times) * s_per_step)
    assert length(limit, steps(epoch=3)) == expected


def test_a_given_number_of_steps_limits_a_run():
    assert length(FixedLength(7), steps(epoch=3)) == 7
    found = [FixedLength(3, of_each=True).is_reached(Step(index=index), optimizers=2) for index in range(6)]
    assert found == [False] * 5 + [True]
