"""Defines the position of a run in its data, independent of the number of workers."""

from dataclasses import dataclass

from samestep.base.errors import UsageError

_LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """The position of the next sample.

    It does not depend on the number of workers, so a run can stop on 4 workers in the middle of an epoch and
    continue on 3. A checkpoint stores its ``dataclasses.asdict``.
    """

    seed: int = 0
    """Seed of the order of every epoch."""
    epoch: int = 0
    """Number of completed epochs."""
    samples: int = 0
    """Number of samples used in this epoch, over all workers."""

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "samples"):
            value = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name} is {value}; use a number from 0 to 2**64-1")

    def next_epoch(self) -> "Position":
        """Return the beginning of the epoch after this one."""
        return Position(self.seed, self.epoch + 1, 0)
