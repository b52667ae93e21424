"""Checks the limits of this process: shared memory, open files, processes, locked memory."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.description import process_limit
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import bytes_text
from samestep.doctor.context import Context, Finding, Result, problem
from samestep.doctor.network import read_ports

# A container's default is 64 MiB. It holds batches of DataLoader's workers, and messages between ranks.
_SHARED_MEMORY_PER_RANK = 256 * 2**20
# torch needs an open file for each tensor that a worker of DataLoader passes on.
_FEW_FILES = 4096
_PROCESSES_PER_RANK = 64  # threads of torch and its libraries, and workers of DataLoader
# Memory that InfiniBand's adapters use must not be swapped out.
_LOCKED_FOR_INFINIBAND = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of this process."""

    shared_memory: tuple[int, int] | None  # size of /dev/shm and its free part, in bytes
    files: tuple[int | None, int | None]  # soft and hard limit of open files; None is unlimited
    processes: int | None = None  # and threads, of this user or control group; None if unknown
    processes_from: str = ""  # source of that limit
    locked: int | None = None  # limit of locked memory, which is not swapped out, in bytes; None is unlimited


def check(context: Context) -> Result:
    """Check the limits of this process."""
    active = any(port.is_active for port in read_ports(context.root))
    return judge(read(context.root), local_size=context.place.local_size, infiniband=active)


def read(root: Path = Path("/")) -> Limits:
    """Return this process's limits, according to the folders of /proc and /dev in `root`."""
    table = parse_limits(text_of(root / "proc/self/limits"))
    user = table.get("Max processes", (None, None))[0]
    group = process_limit(root / "proc")
    both = [(user, "ulimit -u")] if user is not None else []
    if group is not None:
        both.append((int(group.value), str(group.source)))
    processes, source = min(both, default=(None, ""))
    try:
        size = shutil.disk_usage(root / "dev/shm")
        shared_memory = size.total, size.free
    except OSError:
        shared_memory = None
    return Limits(
        shared_memory=shared_memory,
        files=table.get("Max open files", (None, None)),
        processes=processes,
        processes_from=source,
        locked=table.get("Max locked memory", (None, None))[0],
    )


def parse_limits(text: str) -> Mapping[str, tuple[int | None, int | None]]:
    """Return the soft and the hard limit of each name from the text of /proc/self/limits.

    >>> parse_limits("Max open files            1024                 unlimited            files")
    {'Max open files': (1024, None)}
    """
    entries = re.findall(r"^(Max [\w ]+?)\s{2,}(\w+)\s+(\w+)", text, re.MULTILINE)
    table = {}
    for name, *both in entries:
        soft, hard = (int(word) if word.isdecimal() else None for word in both)
        table[name] = soft, hard
    return table


def judge(limits: Limits, *, local_size: int, infiniband: bool) -> Result:
    """Return the rows, findings and facts of limits; `infiniband` is whether there is an active port."""
    soft, memory = limits.files[0], limits.shared_memory
    shown = ["no limit on open files" if soft is None else f"{soft} open files"]
    shown += [] if limits.processes is None else [f"{limits.processes} processes ({limits.processes_from})"]
    shown += [] if limits.locked is None else [f"{bytes_text(limits.locked)} locked"]
    size = (
        "none" if memory is None else f"{bytes_text(memory[1])} free of {bytes_text(memory[0])} in /dev/shm"
    )
    return Result(
        rows=[("shared mem", size), ("limits", ", ".join(shown))],
        findings=[
            *_about_shared_memory(limits, local_size),
            *_about_counts(limits, local_size, infiniband=infiniband),
        ],
        facts={
            "shared_memory": limits.shared_memory,
            "open_files": limits.files,
            "processes": limits.processes,
            "locked_memory": limits.locked,
        },
    )


def _about_shared_memory(limits: Limits, local_size: int) -> Iterator[Finding]:
    needed = _SHARED_MEMORY_PER_RANK * local_size
    if limits.shared_memory is None:
        yield problem(
            "There is no /dev/shm: DataLoader's workers cannot pass on batches, and ranks of this host "
            "communicate over sockets. Mount one (--shm-size of the container)."
        )
    elif limits.shared_memory[1] < needed:
        total, free = limits.shared_memory
        cause = "is small" if total < needed else "is full: remove segments of dead jobs"
        yield problem(
            f"Shared memory (/dev/shm) {cause} ({bytes_text(free)} free of {bytes_text(total)}). "
            f"DataLoader's workers die with 'Bus error' when it is used up; {local_size} rank(s) need "
            f"{bytes_text(needed)} or more (--shm-size=8g, or --ipc=host, of the container; or "
            "num_workers=0)."
        )


def _about_counts(limits: Limits, local_size: int, *, infiniband: bool) -> Iterator[Finding]:
    soft, hard = limits.files
    if soft is not None and soft < _FEW_FILES:
        raised = f"Raise it: `ulimit -n {min(hard or 65536, 65536)}`."
        fixed = "It cannot be raised from here: request more (--ulimit nofile of the container)."
        yield Finding(
            text=f"A process may have {soft} open files. DataLoader's workers need one for each tensor, "
            f"and fail with 'Too many open files'. {fixed if hard == soft else raised}",
            hurts=soft <= 1024,
        )
    if limits.processes is not None and limits.processes < _PROCESSES_PER_RANK * local_size:
        yield problem(
            f"{limits.processes} processes and threads are allowed ({limits.processes_from}), and "
            f"{local_size} rank(s) start some dozens each. Raise it (--pids-limit of the container)."
        )
    if infiniband and limits.locked is not None and limits.locked < _LOCKED_FOR_INFINIBAND:
        yield problem(
            f"{bytes_text(limits.locked)} of memory may be locked, too little for InfiniBand: NCCL "
            "fails or falls back to TCP. `ulimit -l unlimited` (--ulimit memlock=-1 of the container)."
        )
