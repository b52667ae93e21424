"""In double precision a script's tensors are double, however it makes or names them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samestep.verify.precision import in_double_precision

MADE = {
    "default": lambda: torch.zeros(2),
    "named": lambda: torch.zeros(2, dtype=torch.float32),
    "drawn": lambda: torch.randn(2),
    "of a list": lambda: torch.tensor([1.0, 2.0], dtype=torch.float),
    "of NumPy": lambda: torch.from_numpy(np.ones(2, dtype=np.float32)),
    "converted": lambda: torch.arange(2).float(),
    "to a dtype": lambda: torch.arange(2).to(torch.float32),
    "like": lambda: torch.ones_like(torch.zeros(2)),
    "parameter": lambda: nn.Linear(2, 1).weight,
    "of a layer": lambda: nn.Linear(2, 1)(torch.zeros(1, 2)),
}


@pytest.mark.parametrize("how", sorted(MADE))
def test_a_tensor_of_single_precision_is_double(how):
    with in_double_precision():
        made = MADE[how]()
    assert made.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_other_types_are_kept(dtype):
    with in_double_precision():
        assert torch.zeros(2, dtype=dtype).dtype == dtype


def test_single_precision_is_converted_in_operations_with_double_precision():
    single = torch.full((3, 2), 0.5)  # made before, as by a library
    with in_double_precision():
        model = nn.Linear(2, 4)
        loss = F.cross_entropy(model(single), torch.zeros(3, dtype=torch.long))
        loss.backward()
    assert (loss.dtype, model.weight.grad.dtype) == (torch.float64, torch.float64)


def test_complex_numbers_are_double_too():
    with in_double_precision():
        assert torch.zeros(2, dtype=torch.complex64).dtype == torch.complex128


def test_single_precision_is_the_default_again_after_the_block():
    with in_double_precision():
        pass
    assert (torch.zeros(2).dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)
