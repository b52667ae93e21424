"""A wait ends when its condition holds, or at its deadline."""

import pytest

from samestep.base import polling
from samestep.base.polling import holds_within, polls


@pytest.fixture
def clock(monkeypatch):
    """Replace time by a clock that only pauses advance; return the pauses."""
    pauses = []
    monkeypatch.setattr(polling.time, "monotonic", lambda: 100.0 + sum(pauses))
    monkeypatch.setattr(polling.time, "sleep", pauses.append)
    return pauses


def test_the_condition_is_checked_once_before_any_pause_even_without_time(clock):
    assert holds_within(lambda: True, 0.0)
    assert holds_within(lambda: True, -1.0)
    assert not holds_within(lambda: False, -1.0)
    assert not clock


def test_pauses_grow_to_a_tenth_of_the_time_waited(clock):
    for waited in polls(10.0, least_s=0.01, most_s=0.2):
        if waited:
            assert clock[-1] <= max(0.01, waited / 10) + 1e-9
    assert max(clock) == 0.2
    assert min(clock[:-1]) == 0.01


def test_the_last_poll_is_at_the_deadline(clock):
    assert [*polls(1.0)][-1] == pytest.approx(1.0)
    assert sum(clock) == pytest.approx(1.0)


def test_a_condition_that_holds_later_ends_the_wait(clock):
    assert holds_within(lambda: sum(clock) > 0.5, 5.0)
    assert sum(clock) < 0.7
