"""Reads which collectives this process has entered: from torch's flight recorder, and from `PROGRESS`.

Any thread can read the recorder while the main thread waits in a collective. Its counts, some hundred bytes,
are read every time. Its entries, some hundred kilobytes, are read only for a new group, or when no count has
changed for a while. The recorder has no operations between two ranks, and older versions of torch have none.

`PROGRESS` counts what the recorder does not have: collectives in shared memory, and by direct connections.
"""

import pickle
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any

from samestep.base.observers import Observers

SHARED_MEMORY, DIRECT = "shared-memory", "direct-connection"
"""The carrier of a group's collectives, which is the name of the group of all ranks of the job.

Names of smaller groups list their ranks.
"""
OWN_COLLECTIVES: Observers[str] = Observers()
"""Observers of each collective in shared memory and by direct connections, which get its name."""


@dataclass(slots=True)
class Progress:
    """Number of collectives that a group of ranks has entered and left; read from other threads."""

    ranks: tuple[int, ...]  # the group's ranks in the job, ascending
    entered: int = 0  # collectives that this process has entered
    ended: int = 0  # collectives that this process has left; they end in the order in which they begin
    op: str = ""  # name of the last one

    def enter(self, op: str) -> AbstractContextManager[object]:
        """Record that a collective begins; return the context in which the caller runs it."""
        self.op = op
        self.entered += 1
        return OWN_COLLECTIVES.around(op, self)

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


_RECENT = 8  # number of collectives that are compared between ranks: a guess, as ranks drift apart by few
_INPUTS = 4  # number of a collective's inputs that are listed; a status has limited space
_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32"}
"""torch's names of data types, by the recorder's."""
_UNEQUAL = ("gather", "scatter", "all_to_all")
"""Parts of the names of collectives whose inputs may differ between ranks."""


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """Numbers of the collectives of one group that this process entered last and that ended last.

    Collectives may end in another order than they began, so unequal numbers do not imply that one is running.
    """

    entered: int
    last_ended: int


class Recorder:
    """Reads the flight recorder of this process."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # names of groups, by the recorder's id
        self._messages: dict[str, int] = {}
        """For groups of Gloo: messages between two ranks before the first collective."""

    def counts(self) -> dict[str, CollectiveCount]:
        """Return the counts of each group that has had a collective."""
        counts = {}
        status = _dump(entries=False)["pg_status"]
        if status.keys() - self._names.keys():
            self._read_names()
        for number, last in status.items():
            name = self._names.get(str(number), str(number))
            before = self._messages.get(str(number), 0)
            counts[name] = CollectiveCount(
                last["last_enqueued_collective"] - before, last["last_completed_collective"] - before
            )
        for group, progress in list(PROGRESS.items()):  # a copy: the script's thread may add a group
            if progress.entered:
                counts[group] = CollectiveCount(progress.entered, progress.ended)
        return counts

    def under_way(self, group: str) -> tuple[str, int] | None:
        """Return name and number of the first running collective of a group; None without one."""
        if group in PROGRESS:
            progress = PROGRESS[group]
            return (progress.op, progress.entered) if progress.entered != progress.ended else None
        for entry in _collectives(group):
            if not entry["retired"]:
                return _name(entry), entry["collective_seq_id"]
        return None

    def recent(self, group: str) -> tuple[tuple[int, str, str], ...]:
        """Return number, name and input of the last collectives of a group; none in shared memory."""
        if group in PROGRESS:
            return ()
        last = _collectives(group)[-_RECENT:]
        return tuple((entry["collective_seq_id"], _name(entry), _data(entry)) for entry in last)

    def name_of(self, group: str, seq: int) -> str:
        """Return the name of a collective, such as ``all_reduce``."""
        if group in PROGRESS:
            return PROGRESS[group].op
        return next(
            (_name(entry) for entry in _collectives(group) if entry["collective_seq_id"] == seq), "collective"
        )

    def _read_names(self) -> None:
        for entry in _dump(entries=True)["entries"]:
            number = str(entry["pg_id"])
            self._names[number] = _group(entry)
            if number not in self._messages and str(entry["profiling_name"]).startswith("gloo:"):
                # Gloo counts them in the status, and so the proofs of `protected_groups`.
                self._messages[number] = int(entry["op_id"]) - int(entry["collective_seq_id"])


def ranks_of(group: str) -> tuple[int, ...]:
    """Return the ranks of a group by its name; empty for an unknown group."""
    if group in PROGRESS:
        return PROGRESS[group].ranks
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return ()
    for process_group, name in list(c10d._world.pg_names.items()):  # noqa: SLF001 - no public spelling
        if name == group.partition(" ")[0]:
            return tuple(c10d.get_process_group_ranks(process_group))
    return ()


def has_group() -> bool:
    """Return whether this process has a process group, whatever its script sees of it."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d is not None and bool(c10d.is_initialized())


def _collectives(group: str) -> list[dict[str, Any]]:
    entries = _dump(entries=True)["entries"]
    return [entry for entry in entries if _group(entry) == group and not entry.get("is_p2p")]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2]


def _data(entry: dict[str, Any]) -> str:
    """Return size and type of a collective's input as text; empty if ranks may have different inputs."""
    if any(part in _name(entry) for part in _UNEQUAL):
        return ""
    pairs = [*zip(entry["input_sizes"], entry["input_dtypes"], strict=False)]
    listed = [f"{prod(size)} {_TYPES.get(kind, kind.lower())}" for size, kind in pairs[:_INPUTS]]
    if len(pairs) > _INPUTS:
        listed.append(f"... ({len(pairs)} tensors of {sum(prod(size) for size, _ in pairs)} elements)")
    return ", ".join(listed)


def _group(entry: dict[str, Any]) -> str:
    """Return the name of an entry's group, with its description if it has one."""
    name, purpose = entry["process_group"]
    return str(name) if purpose in ("", "undefined", "default_pg") else f"{name} ({purpose})"


def _dump(*, entries: bool) -> dict[str, Any]:
    """Return the merged dumps of the recorders of Gloo and NCCL groups."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    merged: dict[str, Any] = {"pg_status": {}, "entries": []}
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            # Without stack traces: symbolizing them can take seconds.
            content = pickle.loads(dump(includeCollectives=entries, includeStackTraces=False))  # noqa: S301
            merged["pg_status"] |= content.get("pg_status", {})
            merged["entries"] += content.get("entries", [])
    return merged
