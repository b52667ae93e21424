"""Tolerances are those of the precision in which a call has computed."""

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.rounding import ResultPrecision, close, unobserved_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
X = torch.rand(4, 4)


def precision_of(computed, device=CPU):
    with ResultPrecision() as precision:
        computed()
    return precision.coarsest(device)


def of_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.mse_loss((X @ X).float(), X)


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        (lambda: X.double() @ X.double(), torch.float64),
        (lambda: X @ X, torch.float32),
        (lambda: X.half() @ X.half() + X, torch.float16),
        (lambda: X.bfloat16().sum(0).float(), torch.bfloat16),
        (of_autocast, torch.bfloat16),
        (lambda: (X > 0).long(), torch.float32),
        # Single elements, and rows of a table, are rounded equally in a slice.
        (lambda: X @ X + (X.half() + 1).float(), torch.float32),
        (
            lambda: X @ nn.functional.embedding(torch.tensor([1, 2, 3, 0]), X.bfloat16()).float(),
            torch.float32,
        ),
        (lambda: torch.empty(3, dtype=torch.bfloat16).normal_(), torch.float32),
    ],
)
def test_the_coarsest_precision_in_which_values_are_added_counts(computed, expected):
    assert precision_of(computed) == expected


def test_operands_and_autocast_count_where_operations_are_not_observed():
    assert unobserved_precision(CPU, [X.double(), X]) == torch.float32
    assert unobserved_precision(CPU, []) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert unobserved_precision(CPU, [X]) == torch.bfloat16
        assert unobserved_precision(CPU, [X.double()]) == torch.float64


@pytest.fixture
def tf32():
    """Sets whether convolutions and products of matrices may use TF32, and restores both."""
    backends = torch.backends
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32

    def allow(convolutions, products):
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = convolutions, products

    yield allow
    allow(*before)


IMAGES, FILTERS = torch.rand(2, 3, 5, 5), torch.rand(4, 3, 3, 3)


def test_tf32_is_as_coarse_as_half_precision_where_it_is_used(tf32):
    def convolution():
        return nn.functional.conv2d(IMAGES, FILTERS)

    def product():
        return X @ X

    for allowed, computed, expected in (
        ((True, False), convolution, torch.float16),
        ((True, False), product, torch.float32),
        ((False, True), product, torch.float16),
        ((False, True), convolution, torch.float32),
        ((True, True), lambda: X.double() @ X.double(), torch.float64),
        ((True, True), lambda: X.sum(), torch.float32),
    ):
        tf32(*allowed)
        assert precision_of(computed, CUDA) == expected
        assert precision_of(computed, CPU) in (torch.float32, torch.float64)
    assert unobserved_precision(CUDA, [X]) == torch.float16


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


def test_large_inputs_do_not_loosen_half_precision():
    assert not close(torch.tensor([1.5]), torch.tensor([1.0]), scale=255.0, precision=torch.bfloat16)


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_masked_elements_do_not_hide_a_difference_of_others(fill):
    value = torch.tensor([fill, 1.0, -2.0, fill], dtype=torch.float64)
    changed = torch.tensor([fill, 1.001, -2.0, fill], dtype=torch.float64)
    assert close(value * (1 + 1e-10), value, scale=-fill)
    assert not close(changed, value, scale=-fill)


def test_large_values_that_are_no_mask_count():
    value = torch.tensor([1e9, 2e9, 1.0], dtype=torch.float64)
    assert close(value + 1.0, value)
    assert close(torch.tensor([0.0]).double(), torch.tensor([1e-6]).double(), scale=1e6)
