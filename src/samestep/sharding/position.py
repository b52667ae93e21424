"""Where a run stands in its data: three integers that know nothing of the number of workers."""

from dataclasses import dataclass

from samestep.base.errors import UsageError

_LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """The next sample to be used.

    It says the same at any number of workers, so a run may stop on 4 of them in the middle of an epoch
    and go on with 3. ``dataclasses.asdict`` gives what a checkpoint stores.
    """

    seed: int = 0
    """Chooses the order of every epoch."""
    epoch: int = 0
    """Epochs completed."""
    samples: int = 0
    """Samples used in this epoch, by all workers together."""

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "samples"):
            value = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name}={value} is not within 0 .. 2**64-1")

    def next_epoch(self) -> "Position":
        """Return the beginning of the epoch after this one."""
        return Position(self.seed, self.epoch + 1, 0)
