"""All checks of a script take at most half of its time, after the first two seconds."""

import pytest

from samestep.autopilot.helpers.call_states import AT_ONCE_S, CheckTime


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def spend(time, clock, seconds, error=None):
    with time.taken():
        clock.now += seconds
        if error is not None:
            raise error


def test_checks_that_took_more_than_half_of_the_time_wait(clock):
    time = CheckTime(clock)
    assert not time.is_over
    spend(time, clock, 3.0)
    assert time.is_over
    clock.now += 2.9
    assert time.is_over
    clock.now += 0.2
    assert not time.is_over


def test_further_checks_begin_at_once_until_they_have_taken_two_seconds_together(clock):
    """Only this finds a model of a hundred parts whose checks each delay its first steps."""
    time = CheckTime(clock)
    spend(time, clock, AT_ONCE_S / 2)
    assert time.is_over
    assert time.may_begin
    spend(time, clock, AT_ONCE_S)
    assert not time.may_begin
    clock.now += 2 * AT_ONCE_S
    assert time.may_begin


def test_a_check_that_ends_with_an_error_has_taken_its_time(clock):
    time = CheckTime(clock)
    with pytest.raises(RuntimeError):
        spend(time, clock, 1.5, RuntimeError())
    assert time.taken_s == 1.5
