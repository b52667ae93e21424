"""Pauses before restarts grow without progress; the same failure at the same step ends the restarts."""

import pytest

from samestep.launch.local.failure import Failure
from samestep.launch.local.local_backend import Restarts


def failure(**changes):
    return Failure(**{"rank": 0, "local_rank": 0, "pid": 1, "exit_code": 1, **changes})


def paused(steps, **changes):
    restarts, found = Restarts(100), []
    for step in steps:
        restarts.fail(failure(**changes), step)
        found.append(restarts.pause_s)
        restarts.again()
    return found


def test_pauses_double_up_to_half_a_minute_if_the_progress_is_unknown():
    assert paused([None] * 7) == [1, 2, 4, 8, 16, 30, 30]


def test_workers_that_made_progress_are_restarted_after_a_second():
    assert paused([3, 9, 20, 18, 18, 30], exit_code=-9) == [1, 1, 1, 2, 4, 1]


@pytest.mark.parametrize(
    ("first", "second", "stops"),
    [
        (({"message": "no room"}, 4), ({"message": "no room"}, 4), True),
        (({"message": "no room\nframe #0"}, 4), ({"message": "no room\nframe #1", "pid": 2}, 4), True),
        (({"message": "no room"}, 4), ({"message": "no room"}, 5), False),
        (({"message": "no room"}, 4), ({"message": "another"}, 4), False),
        (({}, None), ({}, None), False),
        (({"exit_code": -9}, 4), ({"exit_code": -9}, 4), False),
        (({"exit_code": -11}, 4), ({"exit_code": -11}, 4), True),
    ],
)
def test_the_same_failure_at_the_same_step_ends_the_restarts(first, second, stops):
    restarts = Restarts(5)
    restarts.fail(failure(**first[0]), first[1])
    assert restarts.left == 5
    restarts.again()
    restarts.fail(failure(**second[0]), second[1])
    assert restarts.is_same is stops
    assert restarts.left == (0 if stops else 4)
