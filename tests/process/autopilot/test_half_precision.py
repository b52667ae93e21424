"""Gradients in float16 exceed its range in a split call where they do on one worker."""

import pytest
import torch
from torch import nn


def gradients_near_the_limit():
    """Return the gradients of weights and inputs, given output gradients near the largest number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).half()
    nn.init.constant_(model[1].weight, 0.01)
    x = torch.full((6, 3), 0.01, dtype=torch.float16, requires_grad=True)
    out = model(x)
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float16).repeat(3, 2)
    out.backward(40_000 * signs)
    return [tensor.grad.tolist() for tensor in (*model.parameters(), x)]


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_below_the_limit_of_float16_are_finite(run, size):
    found, split, *_ = run(size, gradients_near_the_limit)
    expected = gradients_near_the_limit()
    assert split == 1
    for own, serial in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(own), torch.tensor(serial), rtol=0.01, atol=0.5)
