"""Ranks that come to different places of a check or of a call leave it at once, and no rank waits."""

from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.team import TeamMemory
from samestep.autopilot.once_script import script_with_helpers
from support.helper_processes import helpers_of_this_process
from support.script_runner import ALL_SPLIT

STEPS, TOTAL = 5, 9


class Normed(nn.Module):
    """Normalizes the batch, over all slices."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.body, self.norm = nn.Linear(4, 6).double(), nn.BatchNorm1d(6).double()

    def forward(self, x):
        if len(x) in (2, 4) and Path(self.path).exists():  # the slice of rank 1, in a check and in a call
            raise IndexError
        return self.normed(torch.tanh(self.body(x)))

    def normed(self, x):
        return self.norm(x)


class Wrapping(Normed):
    """Raises another error where a slice cannot be normalized."""

    def normed(self, x):
        try:
            return self.norm(x)
        except Exception as error:
            raise ValueError("not normalized") from error


class Swallowing(Normed):
    """Goes on where a slice cannot be normalized."""

    def normed(self, x):
        try:
            return self.norm(x)
        except Exception:
            return x


def holding_its_state(model):
    object.__setattr__(model, "best", model.state_dict())


def failing_for_a_slice(model):
    Path(model.path).touch()  # which no check of its state sees


def trained(make, path, change, at):
    torch.manual_seed(2)
    model, found = make(path), []
    for number in range(STEPS):
        x = torch.randn(TOTAL, 4).double()
        if number == at:
            change(model)
        loss = model(x).sin().square().mean()
        model.zero_grad()
        loss.backward()
        found += [loss.item(), model.body.weight.grad.norm().item(), model.norm.running_var.sum().item()]
    return found


def with_helpers(_, *work, size=2):
    """Return the results, whether a helper was lost, and the report."""
    with script_with_helpers(size, ALL_SPLIT, forks=True, timeout_s=5) as account:
        before = helpers_of_this_process()
        found = trained(*work)
        is_lost = helpers_of_this_process() != before
    return found, is_lost, account.lines()


@pytest.mark.parametrize(
    ("make", "change", "at"),
    [(make, failing_for_a_slice, at) for make in (Wrapping, Swallowing) for at in (0, 3)],
)
def test_no_rank_waits_for_one_that_has_left(processes, tmp_path, make, change, at):
    """Only this finds a rank that goes into one more collective after it has learned of that."""
    work = make, str(tmp_path / "failing"), change, at
    ((found, is_lost, lines),) = processes.run(with_helpers, 1, *work)
    assert not is_lost, lines
    assert found == pytest.approx(trained(*work), rel=0, abs=1e-12)
    assert any("IndexError" in line for line in lines), lines


def test_a_model_that_holds_its_own_state_again_is_split(processes):
    """The tensors of it have memory of their own on helpers, which found no counter in them."""
    work = Normed, "no-file", holding_its_state, 2
    ((found, is_lost, lines),) = processes.run(with_helpers, 1, *work)
    assert not is_lost
    assert found == pytest.approx(trained(*work), rel=0, abs=1e-12)
    assert not [line for line in lines if "unsplit" in line], lines


class NormedPlaces(nn.Module):
    """Normalizes each place of sequences that come time first."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(7), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.norm(x.transpose(0, 1)))


def places_normed():
    torch.manual_seed(2)
    model = NormedPlaces().double()
    return [model(torch.randn(7, 8, 4).double()).square().sum().item() for _ in range(3)]


def test_slices_that_communicate_other_sizes_end_one_way_and_not_the_check(compared):
    """Only this finds a check that ends with the first way, along time, as the ranks part in it."""
    split, unsplit, lines = compared(places_normed)
    assert (split, unsplit) == (3, 0), lines


def failing_before_a_check(_, target, failing):
    """Return what `with_helpers` does where a function that checks begin with fails on one of three ranks."""
    original, helper = resolve_name(target), TeamMemory.helper
    ranks = [0]

    def noted(memory, rank):
        ranks.append(rank)
        return helper(memory, rank)

    def function(*args, **kwargs):
        if ranks[-1] == failing:
            raise LookupError(target)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, function)
        patch.setattr(TeamMemory, "helper", noted)
        return with_helpers(None, Normed, "no-file", lambda _: None, 0, size=3)


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("surroundings.Surroundings.entered", 1),
        ("surroundings.Surroundings.entered", 2),
        ("slices._without_graphs", 1),
        ("slices._without_graphs", 0),
    ],
)
def test_a_rank_that_fails_before_its_first_collective_ends_the_check_of_all(processes, name, failing):
    """Only this finds ranks that wait for one whose modes or memory did not let it begin.

    The report named what the last helper had learned of the failed one.
    """
    target = f"samestep.autopilot.helpers.{name}"
    ((_, is_lost, lines),) = processes.run(failing_before_a_check, 1, target, failing)
    assert not is_lost
    assert any("it cannot be checked (LookupError" in line for line in lines), lines
