"""The functions that torch computes with MKL are called once, by one thread, before they can race."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.base.machine.c_libraries import FUNCTIONS, settle_math_kernels


class Calls(TorchDispatchMode):
    """Records each function that is called on a tensor, with the tensor's type and size."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if isinstance(args[0], torch.Tensor):
            self.seen.add((func._schema.name.removeprefix("aten::"), args[0].dtype, args[0].numel()))
        return func(*args, **(kwargs or {}))


def test_the_functions_are_those_that_torch_computes_with_mkl():
    header = Path(torch.__file__).parent / "include/ATen/cpu/vml.h"
    if not header.exists():
        pytest.skip("this torch has no headers")
    left = re.findall(r"^IMPLEMENT_VML_MKL\((\w+),", header.read_text(), re.MULTILINE)
    assert sorted(FUNCTIONS) == sorted(left)


def test_each_function_is_called_on_one_element_of_each_float_type():
    with Calls() as calls:
        settle_math_kernels()
    assert calls.seen == {(name, dtype, 1) for name in FUNCTIONS for dtype in (torch.float32, torch.float64)}


def test_nothing_is_done_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    settle_math_kernels()
