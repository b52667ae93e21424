"""Prepares the C libraries of this process for training: oneMKL's kernels, and glibc's memory."""

import ctypes
import sys
from contextlib import suppress

from samestep.base import env

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log"),
    *("log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)
"""Functions that torch computes with oneMKL, in single and double precision."""


def settle_math_kernels() -> None:
    """Make oneMKL choose the kernel of each function on one thread, before several threads call it.

    oneMKL chooses at the first call. If several threads make that call at once, one of them may get a kernel
    of half the digits for its part of the tensor: observed with oneMKL 2024.2 and torch 2.13
    (https://github.com/pytorch/pytorch/issues/188792). A seeded run then starts with other values than the
    last one, by 1e-8 in double precision. The choice holds for the processes forked from this one too. It
    takes a millisecond the first time; nothing happens if torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for dtype in (torch.float32, torch.float64):
        operand = torch.full((1,), 0.5, dtype=dtype, device="cpu")  # too small for a second thread
        for name in FUNCTIONS:
            getattr(operand, name)()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's settings, in malloc.h
_KEPT, _LARGEST = 1 << 30, 32 << 20
"""Bytes that are kept at most, and the largest block that can be kept, which is glibc's limit."""
_OWN = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}
"""Variables by which a user sets this; they have precedence."""


def keep_freed_memory() -> None:
    """Keep up to 1 GiB of freed memory in this process, unless the user's variables set it otherwise.

    A training step frees its activations and allocates them again. By default glibc returns them to the
    system in between, and each page is zeroed anew at its next use, which takes some percent of a step.
    Nothing happens with a C library other than glibc.
    """
    if _OWN & env.snapshot().keys():
        return
    with suppress(AttributeError):  # there is no mallopt
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, _KEPT)
