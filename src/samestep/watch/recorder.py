"""The collectives of this process, from torch's flight recorder; those in shared memory count themselves.

The recorder can be read from any thread while the main one waits in a collective. Its counts are read every
time, some hundred bytes; its entries, some hundred kilobytes, only for a group not seen before and where no
count has changed for a while. Operations between two ranks are not in it, nor is anything in a torch without
it.
"""

import pickle
import sys
from dataclasses import dataclass
from typing import Any

from samestep.collectives.progress import PROGRESS


@dataclass(frozen=True, slots=True)
class Count:
    """Collectives of one group: how many this process has come to, and which of them ended last.

    They may end in another order than they began in, so that two unequal numbers need not mean that one is
    under way.
    """

    entered: int
    ended_last: int


class Recorder:
    """Reads the flight recorder of this process."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Of groups, by the number that the recorder has for them."""
        self._messages: dict[str, int] = {}
        """Of groups of Gloo's: messages between two ranks before the first collective."""

    def counts(self) -> dict[str, Count]:
        """Return the counts of each group that has had a collective."""
        found = {}
        status = _dump(entries=False)["pg_status"]
        if status.keys() - self._names.keys():
            self._learn_names()
        for number, said in status.items():
            name = self._names.get(str(number), str(number))
            entered, ended = said["last_enqueued_collective"], said["last_completed_collective"]
            before = self._messages.get(str(number), 0)
            found[name] = Count(entered - before, ended - before)
        for group, one in list(PROGRESS.items()):  # the script may add to them meanwhile
            if one.entered:
                found[group] = Count(one.entered, one.ended)
        return found

    def under_way(self, group: str) -> tuple[str, int] | None:
        """Return name and number of the first collective of a group that has not ended; None without one."""
        if group in PROGRESS:
            one = PROGRESS[group]
            return (one.op, one.entered) if one.entered != one.ended else None
        for entry in _collectives(group):
            if not entry["retired"]:
                return _name(entry), entry["collective_seq_id"]
        return None

    def name_of(self, group: str, seq: int) -> str:
        """Return the name of a collective, such as ``all_reduce``."""
        if group in PROGRESS:
            return PROGRESS[group].op
        return next(
            (_name(entry) for entry in _collectives(group) if entry["collective_seq_id"] == seq), "collective"
        )

    def _learn_names(self) -> None:
        for entry in _dump(entries=True)["entries"]:
            number = str(entry["pg_id"])
            self._names[number] = _group(entry)
            if number not in self._messages and str(entry["profiling_name"]).startswith("gloo:"):
                # Gloo counts them in the status, and so the proofs of `samestep.world.gloo_groups`.
                self._messages[number] = int(entry["op_id"]) - int(entry["collective_seq_id"])


def ranks_of(group: str) -> tuple[int, ...]:
    """Return the ranks of a group by its name; none where it is not known here."""
    if group in PROGRESS:
        return PROGRESS[group].ranks
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return ()
    for found, name in list(c10d._world.pg_names.items()):  # noqa: SLF001 - no public spelling
        if name == group.partition(" ")[0]:
            return tuple(c10d.get_process_group_ranks(found))
    return ()


def has_group() -> bool:
    """Return whether this process has a process group, whatever its script is told."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d is not None and bool(c10d.is_initialized())


def _collectives(group: str) -> list[dict[str, Any]]:
    entries = _dump(entries=True)["entries"]
    return [entry for entry in entries if _group(entry) == group and not entry.get("is_p2p")]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2]


def _group(entry: dict[str, Any]) -> str:
    """Return the name of its group, and what it is for where that was said."""
    name, purpose = entry["process_group"]
    return str(name) if purpose in ("", "undefined", "default_pg") else f"{name} ({purpose})"


def _dump(*, entries: bool) -> dict[str, Any]:
    """Return what the recorders of Gloo's and of NCCL's groups hold."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    found: dict[str, Any] = {"pg_status": {}, "entries": []}
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            # Frames are not asked for: making text of them can take seconds.
            held = pickle.loads(dump(includeCollectives=entries, includeStackTraces=False))  # noqa: S301
            found["pg_status"] |= held.get("pg_status", {})
            found["entries"] += held.get("entries", [])
    return found
