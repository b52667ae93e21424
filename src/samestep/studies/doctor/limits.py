"""Checks the limits of this process: shared memory, open files, processes, locked memory."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.cgroup import process_limit
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import bytes_text
from samestep.studies.doctor.check_result import Finding, Part, Row

# A container's default is 64 MiB. It holds batches of DataLoader's workers, and messages between ranks.
_SHARED_MEMORY_PER_RANK = 256 * 2**20
# torch needs an open file for each tensor that a worker of DataLoader passes on.
_FEW_FILES = 4096
_PROCESSES_PER_RANK = 64
# Memory that InfiniBand's adapters use must not be swapped out.
_LOCKED_FOR_INFINIBAND = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of this process.

    Args:
        shared_memory: size of /dev/shm and its free part, in bytes; None if there is none.
        files: soft and hard limit of open files; None is unlimited.
        processes: limit of processes and threads of this user or this control group; None if unknown.
        processes_from: source of that limit.
        locked: limit of locked memory, which is not swapped out, in bytes; None is unlimited.
    """

    shared_memory: tuple[int, int] | None
    files: tuple[int | None, int | None]
    processes: int | None = None
    processes_from: str = ""
    locked: int | None = None


def read(*, root: Path = Path("/")) -> Limits:
    """Return this process's limits.

    Args:
        root: the folder of /proc and /dev.
    """
    table = parsed(text_of(root / "proc/self/limits"))
    user = table.get("Max processes", (None, None))[0]
    group = process_limit(root / "proc")
    both = [(user, "ulimit -u")] if user is not None else []
    if group is not None:
        both.append((int(group.value), str(group.source)))
    processes, source = min(both, default=(None, ""))
    return Limits(
        shared_memory=_size(root / "dev/shm"),
        files=table.get("Max open files", (None, None)),
        processes=processes,
        processes_from=source,
        locked=table.get("Max locked memory", (None, None))[0],
    )


def parsed(text: str) -> Mapping[str, tuple[int | None, int | None]]:
    """Return the soft and the hard limit of each name from the text of /proc/self/limits.

    >>> parsed("Max open files            1024                 unlimited            files")
    {'Max open files': (1024, None)}
    """
    table = {}
    for line in text.splitlines():
        if match := re.match(r"(Max [\w ]+?)\s{2,}(\w+)\s+(\w+)", line):
            name, soft, hard = match.groups()
            table[name] = (_number(soft), _number(hard))
    return table


def judge(limits: Limits, *, local_size: int, infiniband: bool) -> Part:
    """Return the rows, findings and facts of limits.

    Args:
        limits: limits of this process.
        local_size: number of ranks on this host.
        infiniband: whether there is an active port.
    """
    rows, findings = _shared_memory(limits.shared_memory, local_size)
    soft, hard = limits.files
    files = "no limit on open files" if soft is None else f"{soft} open files"
    locked = "" if limits.locked is None else f", {bytes_text(limits.locked)} locked"
    processes = (
        "" if limits.processes is None else f", {limits.processes} processes ({limits.processes_from})"
    )
    rows.append(("limits", f"{files}{processes}{locked}"))
    if soft is not None and soft < _FEW_FILES:
        raised = f"Raise it: `ulimit -n {min(hard or 65536, 65536)}`."
        fixed = "It cannot be raised from here: request more (--ulimit nofile of the container)."
        findings.append(
            Finding(
                text=f"A process may have {soft} open files. DataLoader's workers need one for each tensor, "
                f"and fail with 'Too many open files'. {fixed if hard == soft else raised}",
                hurts=soft <= 1024,
            )
        )
    if limits.processes is not None and limits.processes < _PROCESSES_PER_RANK * local_size:
        findings.append(
            Finding(
                text=f"{limits.processes} processes and threads are allowed ({limits.processes_from}), and "
                f"{local_size} rank(s) start some dozens each. Raise it (--pids-limit of the container)."
            )
        )
    if infiniband and limits.locked is not None and limits.locked < _LOCKED_FOR_INFINIBAND:
        findings.append(
            Finding(
                text=f"{bytes_text(limits.locked)} of memory may be locked, too little for InfiniBand: NCCL "
                "fails or falls back to TCP. `ulimit -l unlimited` (--ulimit memlock=-1 of the container)."
            )
        )
    facts = {
        "shared_memory": limits.shared_memory,
        "open_files": limits.files,
        "processes": limits.processes,
        "locked_memory": limits.locked,
    }
    return Part(rows=tuple(rows), findings=tuple(findings), facts=facts)


def _shared_memory(sizes: tuple[int, int] | None, local_size: int) -> tuple[list[Row], list[Finding]]:
    if sizes is None:
        text = (
            "There is no /dev/shm: DataLoader's workers cannot pass on batches, and ranks of this host "
            "communicate over sockets. Mount one (--shm-size of the container)."
        )
        return [("shared mem", "none")], [Finding(text=text)]
    total, free = sizes
    row = ("shared mem", f"{bytes_text(free)} free of {bytes_text(total)} in /dev/shm")
    needed = _SHARED_MEMORY_PER_RANK * local_size
    if free >= needed:
        return [row], []
    cause = "is small" if total < needed else "is full: remove segments of dead jobs"
    text = (
        f"Shared memory (/dev/shm) {cause} ({bytes_text(free)} free of {bytes_text(total)}). DataLoader's "
        f"workers die with 'Bus error' when it is used up; {local_size} rank(s) need {bytes_text(needed)} or "
        "more (--shm-size=8g, or --ipc=host, of the container; or num_workers=0)."
    )
    return [row], [Finding(text=text)]


def _size(path: Path) -> tuple[int, int] | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None
