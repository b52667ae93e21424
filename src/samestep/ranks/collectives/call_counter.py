"""Counts the shared-memory collectives of this process, which torch's flight recorder does not record."""

from collections.abc import Sequence
from dataclasses import dataclass

GROUP = "shared-memory"
"""The group name for all ranks of the job; names of smaller groups list their ranks."""


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


def progress_of(ranks: Sequence[int], size: int) -> Progress:
    """Return this process's counts in a group of ranks; one object for all memory that this group shares."""
    members = tuple(sorted(ranks))
    group = GROUP if len(members) == size else f"{GROUP} of ranks {', '.join(map(str, members))}"
    return PROGRESS.setdefault(group, Progress(members))
