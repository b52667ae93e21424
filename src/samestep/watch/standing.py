"""What one rank tells the others about where it stands."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["running", "left", "ended", "failed"]
"""Left: the script runs, but has destroyed its process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that a rank waits in for others.

    Args:
        op: its name, as torch has it.
        seq: the number of the collective in its group, from 1; None where nobody counts.
        group: the name of the process group.
        ranks: those who are to come, this one among them.
        age_s: for how long.
    """

    op: str
    seq: int | None
    group: str
    ranks: tuple[int, ...]
    age_s: float

    def __str__(self) -> str:
        number = "" if self.seq is None else f" #{self.seq}"
        where = "" if self.group in ("", "0") else f" of group {self.group}"
        return f"{self.op}{number}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands.

    Args:
        start: how often the workers had been started before.
        beat: grows with every word of this rank.
        state: of its script.
        at: the line of the script that it is in, as ``file:line: text``.
        entered: collectives it has come to, by group.
        met: whether it has, or had, a process group.
        wait: what it has waited in for longest.
        host: of its process.
        pid: of its process.
    """

    start: int
    beat: int
    state: State = "running"
    at: str = ""
    entered: dict[str, int] = field(default_factory=dict)
    met: bool = False
    wait: Wait | None = None
    host: str = ""
    pid: int = 0

    @property
    def collectives(self) -> int:
        """Collectives it has come to, in all groups."""
        return sum(self.entered.values())

    def packed(self) -> bytes:
        """Return this as bytes."""
        return json.dumps(asdict(self)).encode()


def unpacked(said: bytes) -> Standing:
    """Return what `Standing.packed` has made bytes of."""
    values: dict[str, Any] = json.loads(said)
    wait = values.pop("wait")
    if wait is not None:
        wait = Wait(**{**wait, "ranks": tuple(wait["ranks"])})
    return Standing(**values, wait=wait)
