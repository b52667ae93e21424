"""Tolerances are those of the precision in which a call has computed."""

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.rounding import ResultPrecision, close

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
X = torch.rand(4, 4)


def precision_of(computed, *operands, device=CPU):
    with ResultPrecision() as precision:
        computed()
    return precision.coarsest(device, *operands)


def of_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.mse_loss((X @ X).float(), X)


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        (lambda: X.double() @ X.double(), torch.float64),
        (lambda: X @ X, torch.float32),
        (lambda: (X.half() + 1).float(), torch.float16),
        (of_autocast, torch.bfloat16),
        (lambda: (X > 0).long(), torch.float32),
        (lambda: (X + 0j).abs(), torch.float32),
    ],
)
def test_the_coarsest_result_counts(computed, expected):
    assert precision_of(computed) == expected


def test_operands_and_autocast_count_where_operations_are_not_observed():
    assert precision_of(lambda: None, X.double(), X) == torch.float32
    assert precision_of(lambda: None) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of(lambda: None, X) == torch.bfloat16
        assert precision_of(lambda: None, X.double()) == torch.float64


@pytest.fixture
def tf32():
    """Sets whether convolutions and products of matrices may use TF32, and restores both."""
    backends = torch.backends
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32

    def allow(convolutions, products):
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = convolutions, products

    yield allow
    allow(*before)


@pytest.mark.parametrize("allowed", [(True, False), (False, True)])
def test_tf32_is_as_coarse_as_half_precision(tf32, allowed):
    tf32(*allowed)
    assert precision_of(lambda: None, X, device=CUDA) == torch.float16
    assert precision_of(lambda: None, X.double(), device=CUDA) == torch.float64
    tf32(False, False)
    assert precision_of(lambda: None, X, device=CUDA) == torch.float32


def test_rounding_passes_and_a_difference_does_not():
    for dtype, rounding in ((torch.float64, 1e-9), (torch.float32, 5e-5), (torch.bfloat16, 3e-2)):
        own = None if dtype != torch.bfloat16 else dtype
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        value = torch.ones(3, dtype=wide)
        assert close(value * (1 + rounding), value, precision=own)
        assert not close(value * (1 + 100 * rounding), value, precision=own)


def test_values_that_cancel_are_compared_relative_to_their_operands():
    assert close(torch.tensor([1e-5]), torch.tensor([0.0]), scale=100.0)
    assert not close(torch.tensor([1e-5]), torch.tensor([0.0]), scale=1.0)
