"""A worker that runs out of memory: the end of the run, in plain words, and no retry on one worker alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.base.errors import UsageError


@contextmanager
def never_tried_again(what: str) -> Iterator[None]:
    """Within, running out of memory is an error that a script's retry does not catch.

    Args:
        what: is under way.

    Raises:
        UsageError: the memory did not suffice.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"this worker ran out of memory in {what}. A script that catches this and tries again would "
            "leave the other workers behind, so it ends here. Use more workers, a smaller batch, or "
            f"-n 1. ({' '.join(str(error).split())[:200]})"
        ) from error
