"""Counts the collectives of this process that torch's flight recorder does not record.

These are the ones in shared memory, and those by direct connections between ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SHARED_MEMORY, DIRECT = "shared-memory", "direct-connection"
"""The carrier of a group's collectives, which is the name of the group of all ranks of the job.

Names of smaller groups list their ranks.
"""


@dataclass(slots=True)
class Progress:
    """Number of collectives that a group of ranks has entered and left; read from other threads."""

    ranks: tuple[int, ...]  # the group's ranks in the job, ascending
    entered: int = 0  # collectives that this process has entered
    ended: int = 0  # collectives that this process has left; they end in the order in which they begin
    op: str = ""  # name of the last one

    def enter(self, op: str) -> None:
        """Record that a collective begins; the caller then runs it within a ``with`` of this object."""
        self.op = op
        self.entered += 1

    def __enter__(self) -> None:
        """Do nothing: `enter` has recorded the collective."""

    def __exit__(self, *_: object) -> None:
        """Record that the collective has ended, with or without an error."""
        self.ended = self.entered


PROGRESS: dict[str, Progress] = {}
"""This process's counts by group name; the name is the same on all ranks of the group."""


def progress_of(ranks: Sequence[int], size: int, carrier: str) -> Progress:
    """Return this process's counts in a group of ranks; one object for all that this group shares.

    `carrier` is `SHARED_MEMORY` or `DIRECT`, and `size` the number of ranks of the job.
    """
    members = tuple(sorted(ranks))
    group = carrier if len(members) == size else f"{carrier} of ranks {', '.join(map(str, members))}"
    return PROGRESS.setdefault(group, Progress(members))
