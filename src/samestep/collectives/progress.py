"""How far this process has come in collectives that torch's flight recorder does not see."""

from dataclasses import dataclass

GROUP = "shared-memory"
"""The name of the ranks of one host, where ranks are compared by how far they have come."""


@dataclass(slots=True)
class Progress:
    """Collectives through shared memory; read from other threads.

    Args:
        entered: how many this process has come to.
        ended: how many of them are over; they end in the order they begin in.
        op: the last one's name.
    """

    entered: int = 0
    ended: int = 0
    op: str = ""

    def enter(self, op: str) -> None:
        """Come to one."""
        self.op = op
        self.entered += 1

    def leave(self) -> None:
        """Be through with it; where it failed, nobody says so."""
        self.ended = self.entered


PROGRESS = Progress()
"""This process's."""
