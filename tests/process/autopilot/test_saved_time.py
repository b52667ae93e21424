"""Calls that are unsplit to save time have this reason only where they could be split."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samestep
from samestep.autopilot.equivalence.refusal import KEPT_UNSPLIT
from samestep.autopilot.helpers.call_states import CheckTime
from samestep.autopilot.script.call_account import FEWER, LONGER_SPLIT, StepCosts
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.guards import Reach
from samestep.autopilot.split.short_calls import SHORTER_STEPS

TIMED = Options(short_calls="auto", check_every=0)


class Compares(nn.Module):
    """Compares its samples with one another, and calls no module that could be split in its place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        y = x @ self.weight
        return y @ y.T


def with_short_unsplit_steps():
    """Train a model and another one that compares samples, with batches of five sizes."""

    are_shorter = []
    first, second = nn.Linear(3, 3), Compares()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCosts, "is_faster_unsplit", lambda *_: bool(are_shorter))
        patch.setattr(CheckTime, "may_begin", True)
        patch.setattr(CheckTime, "is_over", False)
        for number in range(10):
            x = torch.ones(6 + number % 5, 3)
            F.mse_loss(second(first(x)), torch.ones(len(x), len(x))).backward()
            optimizer.step()
            are_shorter.append(number)


def test_a_call_that_cannot_be_split_has_that_reason_where_unsplit_steps_are_shorter(run):
    """Only this finds a saving of time as the reason of calls that a check has refused."""
    *_, lines = run(2, with_short_unsplit_steps, options=TIMED)
    saved = [line for line in lines if SHORTER_STEPS in line or LONGER_SPLIT in line]
    assert any(line.startswith("Linear at") for line in saved), lines
    assert not any(line.startswith("Compares at") for line in saved), lines


def kept_unsplit_while_checks_wait():
    model = samestep.batch_dim(nn.Linear(3, 3), dim=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckTime, "may_begin", False)
        model(torch.ones(6, 3)).sum().backward()


def test_a_call_that_is_never_checked_does_not_wait_for_checks(run):
    """Only this finds a check as the reason of calls that are refused without one."""
    *_, lines = run(2, kept_unsplit_while_checks_wait, options=TIMED)
    assert any(KEPT_UNSPLIT in line for line in lines), lines


def acting():
    policy, read = nn.LSTM(3, 4, batch_first=True), []
    with pytest.MonkeyPatch.context() as patch:
        of = Reach.of
        patch.setattr(Reach, "of", lambda module: read.append(module) or of(module))
        policy(torch.ones(1, 6, 3))
        read.clear()  # what its check has read
        for _ in range(4):
            policy(torch.ones(1, 6, 3))
    policy(torch.ones(8, 6, 3))
    return read


def test_further_calls_of_single_samples_do_not_read_the_state_of_their_module(run):
    """Without this a policy that acts is a hundred times as slow as on one worker."""
    read, *_, lines = run(2, acting)
    assert read == []
    assert any(f"4 calls unsplit ({FEWER})" in line for line in lines), lines
    assert any("1 call split" in line for line in lines), lines
