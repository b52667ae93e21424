"""A process keeps the memory that it frees, so that the kernel does not zero its pages again."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.base.machine.c_libraries import FUNCTIONS, settle_math_kernels

ROUNDS = 20
CODE = f"""
import ctypes, resource, sys
from samestep.base.machine.c_libraries import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def step():
    blocks = [libc.malloc(20 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 20 << 20)
    for block in blocks:
        libc.free(block)

step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what, **variables):
    own = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", CODE, what],
        capture_output=True,
        text=True,
        check=True,
        env={**own, **variables},
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_freed_memory_is_not_zeroed_again():
    kept, given_back = faults("keep"), faults("as it is")

    assert kept < ROUNDS < given_back
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536") > ROUNDS


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
