"""A process keeps the memory that it frees, so that the kernel does not zero its pages again."""

import os
import platform
import subprocess
import sys

import pytest

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
