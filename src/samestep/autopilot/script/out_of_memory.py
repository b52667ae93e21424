"""Ends the run if a worker runs out of memory, before the script retries on this worker only."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.base.errors import UsageError


@contextmanager
def out_of_memory_is_final(what: str) -> Iterator[None]:
    """Replace an out-of-memory error by one that a script's retry does not catch.

    Args:
        what: the current operation.

    Raises:
        UsageError: the memory does not suffice.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"this worker ran out of memory in {what} ({' '.join(str(error).split())[:200]}); a retry on one "
            "worker would leave the others waiting. Use more workers, a smaller batch, or -n 1."
        ) from error
