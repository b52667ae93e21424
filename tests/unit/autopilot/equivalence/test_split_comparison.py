"""Sample checks become rarer, or come at the requested interval."""

import pytest
from torch import nn

from samestep.autopilot.equivalence.split_comparison import CheckSchedule


def due(schedule, count, *, grad=True):
    module = nn.Linear(1, 1)
    return [number for number in range(1, count + 1) if schedule.is_due(module, grad=grad)]


def test_checks_become_rarer():
    assert due(CheckSchedule(2, None), 600) == [64, 128, 256, 512]
    assert due(CheckSchedule(4, None), 600) == [128, 256, 512]
    assert due(CheckSchedule(2, None), 600, grad=False) == [200, 400]


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4])])
def test_checks_come_at_the_requested_interval(every, expected):
    assert due(CheckSchedule(2, every), 5) == expected


def test_calls_are_counted_for_each_module_and_mode():
    schedule, one, other = CheckSchedule(2, 2), nn.Linear(1, 1), nn.Linear(1, 1)
    found = [schedule.is_due(module, grad=grad) for grad in (True, False) for module in (one, other)]
    assert found == [False] * 4
    assert schedule.is_due(one, grad=True)
