"""Defines the status that each rank posts for the others."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["running", "left", "ended", "failed"]
"""State of a rank's script; ``left``: it runs, but has destroyed its process group."""

MESSAGES = ("send", "recv", "exchange")
"""Operations between two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A call in which a rank waits for others."""

    op: str  # name of the operation in torch
    seq: int | None  # number of the collective in its group, from 1; None for an operation without a number
    group: str  # name of the process group
    # the ranks of a collective, this one included; the other rank of a message; empty for all ranks
    ranks: tuple[int, ...]
    age_s: float  # seconds since the wait was first sampled
    number: int = 0  # number of the call on its rank; 0 where the call is known from torch's recorder only
    alone: bool = False  # whether the rank can do nothing else until the other rank of the message answers
    # the root of a broadcast, reduce, gather or scatter that the script calls; None if it is unknown
    root: int | None = None
    # the part of `DistributedDataParallel` that contains the call; empty for a call of the script
    inside: str = ""
    # number, name and data of its last collectives, such as ``(9, "all_reduce", "4 int64")``
    recent: tuple[tuple[int, str, str], ...] = ()

    @property
    def peer(self) -> int | None:
        """The other rank of a message; None for a collective, and for a message from any rank."""
        return self.ranks[0] if self.op in MESSAGES and self.ranks else None

    def __str__(self) -> str:
        number = "" if self.seq is None else f" #{self.seq}"
        group = "" if self.group in ("", "0") else f" of group {self.group}"
        return f"{self.op}{number}{group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """The status of one rank."""

    generation: int  # number of restarts of the workers before
    beat: int  # number that increases with every status of this rank
    state: State = "running"  # state of the script
    # current line of the script, as ``file:line: text``; of a script that has ended, the line that raised, or
    # called `sys.exit`
    line: str = ""
    entered: dict[str, int] = field(default_factory=dict)  # number of collectives entered, by group
    has_joined: bool = False  # whether the rank has, or had, a process group
    wait: Wait | None = None  # the longest current wait
    gave_up: bool = False  # whether the rank has stopped waiting, since its wait failed
    circle: str = ""  # the ranks that wait for each other, as text, if this rank has detected such ranks
    host: str = ""  # host name of the process
    pid: int = 0  # id of the process

    @property
    def collectives(self) -> int:
        """Number of collectives entered in all groups."""
        return sum(self.entered.values())

    def to_bytes(self) -> bytes:
        """Return the status as bytes."""
        return json.dumps(asdict(self)).encode()


def parse_statuses(messages: Mapping[int, bytes]) -> dict[int, RankStatus]:
    """Return statuses from messages, by rank."""
    return {rank: parse_status(message) for rank, message in messages.items()}


def parse_status(message: bytes) -> RankStatus:
    """Return the status from the bytes of `RankStatus.to_bytes`."""
    values: dict[str, Any] = json.loads(message)
    wait = values.pop("wait")
    if wait is not None:
        recent = tuple((number, op, data) for number, op, data in wait["recent"])
        wait = Wait(**{**wait, "ranks": tuple(wait["ranks"]), "recent": recent})
    return RankStatus(**values, wait=wait)
