"""A region of a script, timed by hand: from when all ranks begin it to when the last of them has ended it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.base.errors import UsageError
from samestep.base.units import seconds_text
from samestep.world.current import current
from samestep.world.world import World


class Region:
    """A region that `timed` times."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._has_raised = False

    @property
    def seconds(self) -> float:
        """What it took the slowest rank; the same on all ranks.

        Raises:
            UsageError: it has not come to its end.
        """
        if self._has_raised:
            raise UsageError(
                "a region that samestep.timed() times has no seconds where an error ended its block."
            )
        if self._seconds is None:
            raise UsageError(
                "a region that samestep.timed() times has no seconds before its end. "
                "Read them after the `with` block."
            )
        return self._seconds

    def end(self, seconds: float) -> None:
        """Note how long it took."""
        self._seconds = seconds

    def fail(self) -> None:
        """Note that an error ended it."""
        self._has_raised = True


@contextmanager
def timed(label: str | None = None, *, world: World | None = None) -> Iterator[Region]:
    """Time a region of a script on all ranks, with a barrier at both ends.

    What an accelerator was given is done before each end counts. Every rank of the job goes through the
    block; where nobody has joined others, the one process does. No barrier stands within, so the region runs
    as it would untimed. A block that raises is not timed, and no rank is waited for.

    Args:
        label: what rank 0 prints the seconds after, once; None for nothing.
        world: the ranks; those of the job that was joined here if not given.

    Yields:
        the region; its `seconds` are known once the block has ended.

    Example:
        >>> with timed() as region:
        ...     total = sum(range(1000))
        >>> region.seconds > 0
        True
    """
    world = current() if world is None else world
    region = Region()
    _finish_device()
    world.barrier()
    begun = time.perf_counter()
    try:
        yield region
    except BaseException:
        region.fail()
        raise
    _finish_device()
    own = torch.tensor([time.perf_counter() - begun], dtype=torch.float64, device=world.device)
    world.all_reduce(own, op="max")  # which no rank leaves before all have come
    region.end(float(own.item()))
    if label is not None:
        world.print(f"{label}: {seconds_text(region.seconds)}")


def _finish_device() -> None:
    """Wait for what this process has given to its accelerator; one it does not use is left alone."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return
    # To wait for a device opens it, also for a script that never touches it. Metal needs no opening.
    is_open = getattr(torch.get_device_module(device), "is_initialized", torch.accelerator.is_available)
    if is_open():
        torch.accelerator.synchronize()
