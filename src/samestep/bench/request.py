"""Parses the request for a benchmark, without torch."""

from dataclasses import dataclass

from samestep.base.units import bytes_of, check_seconds

COLLECTIVES = ("all_reduce", "broadcast", "all_gather")
SYNCS = ("reference", "bucketed", "flat", "ddp", "exact")
"""Gradient synchronizers that `bench step` measures."""
ALONE = "alone"
"""Its name for steps without synchronization."""
BUCKET = 25 << 20
"""The default bucket size of DistributedDataParallel in bytes."""
SIZES = (4, 1 << 10, 64 << 10, 1 << 20, BUCKET, 256 << 20)
"""The default sizes in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a benchmark of one collective."""

    collective: str  # its name, one of `COLLECTIVES`
    sizes: tuple[int, ...]  # in bytes, ascending
    seconds: float = 2.0  # time for each size

    def __post_init__(self) -> None:
        check_seconds("--seconds", self.seconds)


def sizes_of(text: str | None) -> tuple[int, ...]:
    """Return the sizes in a list such as ``4,64K,25MiB`` ascending, or the default ones.

    Raises:
        UsageError: a size is invalid.
    """
    if text is None:
        return SIZES
    return tuple(sorted({bytes_of("--sizes", size) for size in text.split(",")}))
