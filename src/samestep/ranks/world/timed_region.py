"""Times a region of a script: from the moment all ranks begin it until the last of them has ended it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.base.errors import UsageError
from samestep.base.units import seconds_text
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World


class TimedRegion:
    """Region of a script that `timed` times."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._missing = "before its end. Read them after the `with` block"
        """Why there are no seconds."""

    @property
    def seconds(self) -> float:
        """Seconds of the slowest rank; the same on all ranks.

        Raises:
            UsageError: the region has not ended, or ended with an error.
        """
        if self._seconds is None:
            raise UsageError(f"a region that samestep.timed() times has no seconds {self._missing}.")
        return self._seconds

    def end(self, seconds: float) -> None:
        """Record the seconds of the region."""
        self._seconds = seconds

    def fail(self) -> None:
        """Record that an error ended the region."""
        self._missing = "if an error ended its block"


@contextmanager
def timed(label: str | None = None, *, world: World | None = None) -> Iterator[TimedRegion]:
    """Time a region of a script on all ranks, with a barrier at both ends.

    The queued work of an accelerator is complete before each end is measured. Every rank of the job runs the
    block; without a job, the one process does. There is no barrier inside, so the region runs
    as it would untimed. A block that raises is not timed, and does not wait for other ranks.

    Args:
        label: text that rank 0 prints before the seconds, once; None to print nothing.
        world: the ranks; by default those of the job that this context has joined.

    Yields:
        the region; its `seconds` are known once the block has ended.

    Example:
        >>> with timed() as region:
        ...     total = sum(range(1000))
        >>> region.seconds > 0
        True
    """
    world = current() if world is None else world
    region = TimedRegion()
    _finish_device()
    world.barrier()
    begun = time.perf_counter()
    try:
        yield region
    except BaseException:
        region.fail()
        raise
    _finish_device()
    elapsed = torch.tensor([time.perf_counter() - begun], dtype=torch.float64, device=world.device)
    world.all_reduce(elapsed, op="max")  # no rank leaves this before all have called it
    region.end(float(elapsed.item()))
    if label is not None:
        world.print(f"{label}: {seconds_text(region.seconds)}")


def _finish_device() -> None:
    """Wait for the queued work of this process's accelerator; do not open one that it does not use."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return
    # Waiting for a device opens it, even if the script never uses it. Metal needs no opening.
    is_open = getattr(torch.get_device_module(device), "is_initialized", torch.accelerator.is_available)
    if is_open():
        torch.accelerator.synchronize()
