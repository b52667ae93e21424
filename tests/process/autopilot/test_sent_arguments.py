"""Arguments with objects that helpers make with difficulty, or not at all, cost no helper."""

import sys

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.helper_processes import Helpers


class Versioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x, version):
        return self.one(x) * version[0]


class Version(tuple):
    """A tuple whose class requires other arguments than it stores."""

    def __new__(cls, major, minor):
        return super().__new__(cls, (major, minor))


def called(version):
    """Return the outputs of three calls with helpers, and how often these were started again."""
    model, restarts = Versioned(), []
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        patch.setattr(Helpers, "restart", lambda *_: restarts.append(1))
        return [model(torch.ones(6, 3), version).tolist() for _ in range(3)], len(restarts)


def called_with_system():
    return called(sys.version_info)


def called_with_own():
    return called(Version(3, 11))


@pytest.mark.parametrize(("work", "is_split"), [(called_with_system, True), (called_with_own, False)])
def test_an_object_that_cannot_be_made_again_costs_no_helper(run, work, is_split):
    """Only this finds a message that a helper cannot read, at which it dies."""
    (outputs, restarts), *_, lines = run(2, work)
    assert (outputs, restarts) == ([[[6.0] * 3] * 6] * 3, 0)
    assert any(line.startswith("Versioned at") and "calls split" in line for line in lines) == is_split
