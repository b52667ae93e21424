"""Errors that a device finds are raised later, once they have arrived at the host, and stay."""

from types import SimpleNamespace

import pytest
import torch

from samestep.autopilot.split import deferred_checks
from samestep.autopilot.split.deferred_checks import DeferredChecks, refuse
from samestep.base.errors import UsageError

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


class Event:
    """An event of a device that reaches it when the test says so."""

    def __init__(self, recorded):
        self.has_passed, self.waits, self.recorded = False, 0, recorded

    def record(self):
        self.recorded.append(self)

    def query(self):
        return self.has_passed

    def synchronize(self):
        self.waits += 1
        for one in self.recorded[: self.recorded.index(self) + 1]:
            one.has_passed = True


@pytest.fixture
def far(monkeypatch):
    """The checks of a device that is not the CPU, and the events that they record on it."""
    original, recorded = torch.empty, []
    device = SimpleNamespace(Event=lambda: Event(recorded))
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory, **more: original(*sizes, **more))
    monkeypatch.setattr(deferred_checks, "_is_host", lambda _: False)
    return DeferredChecks(), recorded


def test_a_failed_check_is_raised_by_the_next_poll_and_all_later_ones():
    checks = DeferredChecks()
    checks.add(FALSE, "right")
    checks.poll()
    checks.add(TRUE, "first")
    checks.add(TRUE, "second")
    for _ in range(2):
        with pytest.raises(UsageError, match="first"):
            checks.poll()
    with pytest.raises(UsageError, match="first"):
        checks.finish()


def test_a_flag_is_copied_when_it_is_added():
    checks, flag = DeferredChecks(), torch.tensor(False)
    checks.add(flag, "changed later")
    flag.fill_(True)
    checks.finish()


def test_a_poll_does_not_wait_for_a_device(far):
    checks, events = far
    checks.add(FALSE, "right")
    checks.add(TRUE, "wrong")
    checks.poll()
    events[0].has_passed = True
    checks.poll()
    events[1].has_passed = True
    with pytest.raises(UsageError, match="wrong"):
        checks.poll()
    assert [one.waits for one in events] == [0, 0]


def test_the_end_waits_for_all_flags(far):
    checks, events = far
    checks.add(TRUE, "wrong")
    checks.add(FALSE, "right")
    with pytest.raises(UsageError, match="wrong"):
        checks.finish()
    assert [one.waits for one in events] == [1, 1]


def test_a_check_is_deferred_within_a_split_call_and_read_at_once_elsewhere():
    checks = DeferredChecks()
    with checks.deferring():
        refuse(TRUE, "in a split call")
    with pytest.raises(UsageError, match="in a split call"):
        checks.poll()
    refuse(FALSE, "elsewhere")
    with pytest.raises(UsageError, match="elsewhere"):
        refuse(TRUE, "elsewhere")
