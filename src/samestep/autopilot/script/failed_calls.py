"""Ends the run if one rank's slice of a call has raised an error and the script continues.

A script may catch the error of a forward, and continue with the next batch. If the slices of all ranks have
raised, all ranks continue equally. If some have not, they wait in the call for the rank that has raised; its
next call, or the end of its script, then ends the run.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import Error, OutOfStep, UsageError
from samestep.base.polling import holds_within

_FINAL = re.compile(
    r"(CUDA|HIP)( driver)? error: .*(assert|illegal|misaligned|launch fail|uncorrectable|hardware stack"
    r"|invalid program counter|invalid address space)"
)
"""Errors after which each operation of a process fails on its device."""
_PATIENCE_S = 20.0
"""Seconds that a rank waits for the others to raise as well: they compute slices of the same batch."""


class FailedCalls:
    """The split calls of one rank that have raised an error."""

    def __init__(
        self, patience_s: float = _PATIENCE_S, store: Callable[[], Any] = _get_default_store
    ) -> None:
        self._patience_s, self._store = patience_s, store
        self._text = self._key = ""

    def record(self, name: str, number: int, error: Exception) -> None:
        """Record that a split call has raised an error."""
        self._text = (
            f"{name} raised {type(error).__name__} for this worker's slice of a batch but not for all "
            "slices, and the script went on. Keep its calls unsplit: samestep.batch_dim(model, dim=None)."
        )
        self._key = "" if isinstance(error, Error) else f"samestep/raised/{number}"
        if self._key:
            self._count(1)

    def check(self, size: int) -> None:
        """Raise `OutOfStep` if the last call that raised an error did not do so on all ranks."""
        if not self._text:
            return
        if self._key and holds_within(lambda: self._count(0) >= size, self._patience_s, least_s=0.01):
            self._text = ""
            return
        raise OutOfStep(self._text)

    def _count(self, amount: int) -> int:
        """Add to the number of ranks that have raised, and return it; 0 without a store."""
        try:
            return int(self._store().add(self._key, amount))
        except (RuntimeError, ValueError):  # rank 0 has exited, or ranks are threads
            return 0


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error ends all computations on a device, unlike one of memory or of an argument."""
    return isinstance(error, RuntimeError) and bool(_FINAL.search(str(error)))


@contextmanager
def out_of_memory_is_final(what: str) -> Iterator[None]:
    """Replace an out-of-memory error by a `UsageError`, which a script's retry does not catch."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"this worker ran out of memory in {what} ({' '.join(str(error).split())[:200]}); a retry on one "
            "worker would leave the others waiting. Use more workers, a smaller batch, or -n 1."
        ) from error
