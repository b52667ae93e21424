"""Calls that take longer split are computed unsplit, by a decision that is equal on all ranks."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from samestep.autopilot import split_calls
from samestep.autopilot.script.call_account import LONGER_SPLIT, TOO_SHORT, Account
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.gradients import Gradients
from samestep.autopilot.split.short_calls import FIRST, LONGEST_S, TIMED, ShortCalls
from samestep.autopilot.split_calls import CallSplitter, intercepted_calls, splitting_calls
from samestep.ranks.world.thread_world import run_ranks

SPLIT, UNSPLIT = False, True


class Clock:
    """A clock that stands still unless it is advanced."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def ways(world, calls, seconds, *, grad=True, sizes=(20,), enabled=True):
    """Return the way of each call, given its seconds by number, rank and way."""
    clock, module = Clock(), nn.Linear(2, 2)
    short = ShortCalls(world, Account(), enabled=enabled, clock=clock)
    found = []
    with torch.set_grad_enabled(grad):
        for number in range(calls):
            given = CallArguments((torch.ones(sizes[number % len(sizes)], 2),))
            kind = short.begin(module, given)
            found.append(kind.is_unsplit)
            clock.now += seconds(number, world.place.rank, kind.is_unsplit)
            short.end(kind, module)
    return found


def decided(seconds, calls=100, **how):
    """Return whether the last of some calls was unsplit; the ways are equal on both ranks."""
    one, other = run_ranks(partial(ways, calls=calls, seconds=seconds, **how), 2)
    assert one == other
    return one[-1]


def times(split_s, unsplit_s):
    return lambda _number, _rank, is_unsplit: unsplit_s if is_unsplit else split_s


def test_calls_that_take_longer_split_are_unsplit_and_measured_again_once_their_number_has_doubled():
    for found in run_ranks(partial(ways, calls=2 * FIRST + 2 * TIMED + 1, seconds=times(4e-3, 1e-3)), 2):
        measured = [SPLIT] * TIMED + [UNSPLIT] * TIMED
        between = [UNSPLIT] * (FIRST - len(measured))
        assert found == [SPLIT] * FIRST + measured + between + measured + [UNSPLIT]


def test_a_device_is_waited_for_before_the_clock_is_read_and_only_in_timed_calls(monkeypatch):
    waits, module, given = [], nn.Linear(2, 2), CallArguments((torch.ones(20, 2),))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waits.append(None))
    short = ShortCalls(SimpleNamespace(device=torch.device("meta")), Account(), clock=Clock())
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
    for found in run_ranks(partial(ways, calls=300, seconds=times(1.1 * LONGEST_S, 1e-3)), 2):
        assert found == [SPLIT] * 300


def test_the_wait_for_a_slower_rank_does_not_count():
    def seconds(_number, rank, is_unsplit):
        return 1e-3 if is_unsplit or rank == 1 else 9e-3

    assert decided(seconds) == SPLIT


def test_a_few_disturbed_calls_do_not_decide():
    def seconds(number, _rank, is_unsplit):
        return 40e-3 if number % 3 == 0 else 4e-3 if is_unsplit else 3e-3

    assert decided(seconds) == SPLIT


def test_the_measurement_after_a_disturbed_one_corrects_it():
    def seconds(number, _rank, is_unsplit):
        return 40e-3 if number < 2 * FIRST and not is_unsplit else 1e-3

    assert decided(seconds, 2 * FIRST) == UNSPLIT
    assert decided(seconds, 3 * FIRST) == SPLIT


def test_calls_of_each_size_have_their_own_decision():
    assert decided(times(4e-3, 1e-3), 2 * (FIRST + TIMED), sizes=(20, 30)) == SPLIT
    assert decided(times(4e-3, 1e-3), 2 * (FIRST + TIMED) + 2, sizes=(20, 30)) == UNSPLIT


def test_all_calls_are_split_if_the_user_chooses_so():
    assert decided(times(4e-3, 1e-3), enabled=False) == SPLIT


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, y):
        return self.net(y)


def trained():
    """Return the weights after steps of an Euler integration with 12 calls each."""
    model = Field().double()
    for parameter in model.parameters():
        parameter.data = torch.linspace(-0.4, 0.6, parameter.numel(), dtype=torch.float64).view(
            parameter.shape
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.linspace(-1, 1, 14, dtype=torch.float64).view(7, 2)
    for _ in range(12):
        state, loss = y, torch.zeros(())
        for _ in range(12):
            state = state + 0.1 * model(state)
            loss = loss + state.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [one.detach().clone() for one in (*model.parameters(), *model.buffers())]


def trained_by(world, options):
    account, gradients = Account(), Gradients(world, check_every=1)
    with splitting_calls(CallSplitter(world, gradients, account, options)):
        found = trained()
    gradients.detach()
    return found, account


@pytest.mark.parametrize("short_calls", ["auto", "split"])
def test_a_training_with_short_calls_has_the_serial_result(monkeypatch, short_calls):
    class SlowSplit(ShortCalls):
        """Measures 9 ms for each split call, and 1 ms for each unsplit one."""

        def end(self, kind, module):
            kind.began = -9e-3 if not kind.is_unsplit else -1e-3
            super().end(kind, module)

    monkeypatch.setattr(split_calls, "ShortCalls", partial(SlowSplit, clock=lambda: 0.0))
    expected = trained()
    with intercepted_calls(), batch_norm_of_slices():
        ranks = run_ranks(partial(trained_by, options=Options(short_calls=short_calls)), 2)
    for found, account in ranks:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        short = sum(counts[LONGER_SPLIT] for counts in account.counts.values())
        assert short == (0 if short_calls == "split" else 144 - 1 - FIRST - 2 * TIMED)
        assert account.split.total() == 144 - short
        assert TOO_SHORT not in account.lines()


def test_the_report_advises_one_worker_if_most_calls_take_longer_split():
    account = Account()
    account.split["Field at ode.py:3"] += 4
    account.note_longer_split("Field at ode.py:3", 1e-4, 2e-3, main=False)
    for _ in range(4):
        account.note_unsplit("Field at ode.py:3", LONGER_SPLIT)
    assert TOO_SHORT not in account.lines()
    account.note_unsplit("Field at ode.py:3", LONGER_SPLIT)
    assert TOO_SHORT in account.lines()
    assert any("2 ms" in line and "100 us" in line for line in account.lines())
