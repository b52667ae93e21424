"""A number that is read from samples is recorded where a forward may branch on it."""

import math

import pytest
import torch

from samestep.autopilot.state.sample_reads import SampleReads

BRANCHES = {
    "comparison": lambda x: x.max().item() > 2,
    "comparison of a multiple": lambda x: 2 * x.max().item() - 1 > 2,
    "larger number": lambda x: max(0.0, x.max().item()) > 2,
    "magnitude": lambda x: abs(x.min().item()) > 2,
    "equal": lambda x: x.max().item() == 2,
    "unequal": lambda x: x.max().item() != 2,
    "number as a condition": lambda x: 1 if x.sum().item() else 2,
    "integer of a number": lambda x: int(x.max().item()) > 2,
    "integer below a number": lambda x: math.floor(x.max().item()) > 2,
    "rounded": lambda x: round(x.max().item(), 1) > 2,
    "close tensors": lambda x: torch.allclose(x, x.clamp(max=2)),
    "tensor of no zero": lambda x: torch.is_nonzero(x.max()),
}


def found(branches, x):
    with SampleReads() as reads:
        reads.follow([x])
        result = branches(x)
    return result, [value for values in reads.found.values.values() for value in values]


@pytest.mark.parametrize("name", BRANCHES)
def test_a_number_that_decides_a_branch_is_recorded(name):
    x = torch.tensor([-0.5, 1.0, 3.0], dtype=torch.float64)
    result, values = found(BRANCHES[name], x)
    assert values
    assert result == BRANCHES[name](x)


def test_arithmetic_with_a_number_is_no_branch():
    x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    result, values = found(lambda x: x / (1 + x.sum().item() ** 2), x)
    assert values == []
    assert torch.equal(result, x / 17)
