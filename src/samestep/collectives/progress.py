"""How far this process has come in collectives that torch's flight recorder does not see."""

from collections.abc import Sequence
from dataclasses import dataclass

GROUP = "shared-memory"
"""The name of a job's ranks where they are compared by how far they have come; other groups name theirs."""


@dataclass(slots=True)
class Progress:
    """Collectives of some ranks through shared memory, each within a ``with``; read from other threads.

    Args:
        ranks: theirs in the job, ascending.
        entered: how many this process has come to.
        ended: how many of them are over; they end in the order they begin in.
        op: the last one's name.
    """

    ranks: tuple[int, ...]
    entered: int = 0
    ended: int = 0
    op: str = ""

    def enter(self, op: str) -> None:
        """Come to one."""
        self.op = op
        self.entered += 1

    def __enter__(self) -> None:
        """Be in the one that this process has come to."""

    def __exit__(self, *_: object) -> None:
        """Be through with it, however it ended."""
        self.ended = self.entered


PROGRESS: dict[str, Progress] = {}
"""This process's, by the name of the group, which all its ranks have for it."""


def progress_of(ranks: Sequence[int], size: int) -> Progress:
    """Return this process's progress among some ranks, the same for all memory that just these share.

    Args:
        ranks: theirs in the job.
        size: ranks of the job.
    """
    members = tuple(sorted(ranks))
    group = GROUP if len(members) == size else f"{GROUP} of ranks {', '.join(map(str, members))}"
    return PROGRESS.setdefault(group, Progress(members))
