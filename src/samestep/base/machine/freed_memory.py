"""Lets the C library keep the memory that a process frees, for its next allocations.

A training step frees its activations and allocates them again. By default glibc returns them to the system
in between, and each page is zeroed anew at its next use, which takes some percent of a step.
"""

import ctypes
from contextlib import suppress

from samestep.base import env

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's settings, in malloc.h
_KEPT, _LARGEST = 1 << 30, 32 << 20
"""Bytes that are kept at most, and the largest block that can be kept, which is glibc's limit."""
_OWN = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}
"""Variables by which a user sets this; they have precedence."""


def keep_freed_memory() -> None:
    """Keep up to 1 GiB of freed memory in this process, unless the user's variables set it otherwise.

    Nothing happens with a C library other than glibc.
    """
    if _OWN & env.snapshot().keys():
        return
    with suppress(AttributeError):  # there is no mallopt
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, _KEPT)
