"""Calls that take longer split are computed unsplit."""

import pytest
import torch
from torch import nn

from samestep.autopilot.script.call_account import LONGER_SPLIT, TOO_SHORT, Account
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.short_calls import AGAIN, FIRST, LONGEST_S, TIMED, FreshModules, ShortCalls

SPLIT, UNSPLIT = False, True


class Clock:
    """A clock that stands still unless it is advanced."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def ways(calls, seconds, *, grad=True, sizes=(20,), enabled=True):
    """Return the way of each call, given its seconds by number and way."""
    clock, module = Clock(), nn.Linear(2, 2)
    short = ShortCalls(torch.device("cpu"), Account(), enabled=enabled, clock=clock)
    found = []
    with torch.set_grad_enabled(grad):
        for number in range(calls):
            given = CallArguments((torch.ones(sizes[number % len(sizes)], 2),))
            kind = short.begin(module, given)
            found.append(kind.is_unsplit)
            clock.now += seconds(number, kind.is_unsplit)
            short.end(kind, module)
    return found


def decided(seconds, calls=100, **how):
    """Return whether the last of some calls was unsplit."""
    return ways(calls, seconds, **how)[-1]


def times(split_s, unsplit_s):
    return lambda _, is_unsplit: unsplit_s if is_unsplit else split_s


def test_calls_that_take_longer_split_are_unsplit_and_measured_again_once_their_number_has_doubled():
    measured = [SPLIT] * TIMED + [UNSPLIT] * TIMED
    first = [SPLIT] * FIRST + measured
    between, later = [UNSPLIT] * (AGAIN - len(first)), [UNSPLIT] * (AGAIN - len(measured))
    found = ways(2 * AGAIN + len(measured) + 1, times(4e-3, 1e-3))
    assert found == [*first, *between, *measured, *later, *measured, UNSPLIT]


def test_a_device_is_waited_for_before_the_clock_is_read_and_only_in_timed_calls(monkeypatch):
    waits, module, given = [], nn.Linear(2, 2), CallArguments((torch.ones(20, 2),))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waits.append(None))
    short = ShortCalls(torch.device("meta"), Account(), clock=Clock())
    for _ in range(FIRST):
        short.end(short.begin(module, given), module)
    assert waits == []

    short.end(short.begin(module, given), module)
    assert len(waits) == 2


@pytest.mark.parametrize(
    ("split_s", "unsplit_s", "grad", "way"),
    [
        (3.1e-3, 1e-3, True, UNSPLIT),
        (2.9e-3, 1e-3, True, SPLIT),  # the unsplit backward costs more than the split forward
        (1.6e-3, 1e-3, False, UNSPLIT),
        (1.4e-3, 1e-3, False, SPLIT),
        (1.1 * LONGEST_S, 1e-3, True, SPLIT),
    ],
)
def test_the_ratio_decides_whether_calls_are_split(split_s, unsplit_s, grad, way):
    assert decided(times(split_s, unsplit_s), grad=grad) == way


def test_a_long_call_is_never_computed_unsplit():
    assert ways(300, times(1.1 * LONGEST_S, 1e-3)) == [SPLIT] * 300


def test_a_few_disturbed_calls_do_not_decide():
    def seconds(number, is_unsplit):
        return 40e-3 if number % 3 == 0 else 4e-3 if is_unsplit else 3e-3

    assert decided(seconds) == SPLIT


def test_the_measurement_after_a_disturbed_one_corrects_it():
    def seconds(number, is_unsplit):
        return 40e-3 if number < AGAIN and not is_unsplit else 1e-3

    assert decided(seconds, AGAIN) == UNSPLIT
    assert decided(seconds, 2 * AGAIN) == SPLIT


def test_calls_of_each_size_have_their_own_decision():
    assert decided(times(4e-3, 1e-3), 2 * (FIRST + TIMED), sizes=(20, 30)) == SPLIT
    assert decided(times(4e-3, 1e-3), 2 * (FIRST + TIMED) + 2, sizes=(20, 30)) == UNSPLIT


def test_all_calls_are_split_if_the_user_chooses_so():
    assert decided(times(4e-3, 1e-3), enabled=False) == SPLIT


def test_the_report_advises_one_worker_if_most_calls_take_longer_split():
    account = Account()
    account.split["Field at ode.py:3"] += 4
    account.note_longer_split("Field at ode.py:3", 1e-4, 2e-3)
    for _ in range(4):
        account.note_unsplit("Field at ode.py:3", LONGER_SPLIT)
    assert TOO_SHORT not in account.lines()
    account.note_unsplit("Field at ode.py:3", LONGER_SPLIT)
    assert TOO_SHORT in account.lines()
    assert any("2 ms" in line and "100 us" in line for line in account.lines())


@pytest.mark.parametrize("enabled", [True, False])
def test_steps_that_are_shorter_unsplit_are_reported_only_where_they_are_used(capsys, monkeypatch, enabled):
    clock, account, module = Clock(), Account(), nn.Linear(2, 2)
    account.steps.clock = clock
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    monkeypatch.setattr(Account, "place_of", lambda *_: "Linear at train.py:3")
    for is_split in [True] * 5 + [False] * 5:
        account.steps.note_call("Linear at train.py:3", is_split=is_split)
        clock.now += 2.0 if is_split else 1.0
        account.steps.after_step(optimizer)
    short = ShortCalls(torch.device("cpu"), account, enabled=enabled, clock=clock)
    kinds = [short.begin(module, CallArguments((torch.ones(20, 2),))) for _ in range(2)]
    assert [kind.is_unsplit for kind in kinds] == [enabled] * 2
    assert len(capsys.readouterr().err.splitlines()) == enabled


class Wrapper(nn.Module):
    pass


def waiting(fresh, module, calls):
    return [fresh.waits(module) for _ in range(calls)]


def test_after_modules_of_few_calls_the_next_module_waits_until_it_has_lived():
    """Catches a module that is checked each time it is made, and a living module that is never checked."""
    fresh = FreshModules()

    assert [any(waiting(fresh, Wrapper(), 5)) for _ in range(5)] == [False, False, False, True, True]
    assert waiting(fresh, Wrapper(), 70) == [True] * 64 + [False] * 6
    assert not any(waiting(fresh, Wrapper(), 70))


def test_other_classes_and_modules_that_live_do_not_wait():
    """Catches a count over all classes, and a count of modules that still exist."""
    fresh = FreshModules()
    living = [Wrapper() for _ in range(9)]

    assert not any(any(waiting(fresh, module, 5)) for module in living)
    for _ in range(4):
        waiting(fresh, Wrapper(), 5)
    assert not any(waiting(fresh, nn.Linear(2, 2), 5))
    assert all(waiting(fresh, Wrapper(), 5))
