"""Finds orphans of dead jobs on this host: workers without a launcher, shared memory, temporary folders."""

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samestep.base import owned_folders
from samestep.base.machine.torch_segments import numbers_of_the_living
from samestep.base.units import bytes_text, seconds_text
from samestep.studies.doctor.context import Context
from samestep.studies.doctor.masking import without_credentials
from samestep.studies.doctor.results import Finding, Result, note, problem

if TYPE_CHECKING:
    import psutil

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
# Programs other than process 1 that adopt the children of a process that has ended.
_ADOPTS_ORPHANS = {"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan"}
# In a container, process 1 can be the launcher itself; its children are no orphans.
_STARTS_RANKS = re.compile(
    r"(\S*python\S* (-\S+ )*)?(\S*/)?"
    r"(mpirun|mpiexec|orterun|prterun|orted|prted|hydra_pmi_proxy|slurmstepd|torchrun|"
    r"torch\.distributed\.(run|launch)|samestep|accelerate|deepspeed|horovodrun)(\.\w+)?(\s|$)"
)
_SEGMENT = re.compile(r"torch_(\d+)_")
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Process of this user that has a launcher's variables."""

    pid: int  # process ID
    parent: int  # process ID of its present parent
    parent_name: str  # name of the parent
    command: str  # command line of the process
    parent_command: str = ""  # command line of the parent
    age_s: float = 0.0  # seconds since its start
    ports: tuple[int, ...] = ()  # TCP ports at which it listens
    variables: tuple[str, ...] = ()  # the variables that hold its rank, with their values


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Shared memory segment whose process has ended; size in bytes."""

    name: str
    bytes: int


def check(context: Context) -> Result:
    """Find orphaned processes and shared memory of dead jobs."""
    own, port = own_processes(), None if context.master is None else context.master[1]
    return judge(
        orphans(processes_here(), own=own),
        orphaned_segments(),
        listener_at(port, own=own) if port is not None and context.place.is_main else None,
        port,
    )


def orphans(every: Iterable[Process], *, own: Collection[int]) -> list[Process]:
    """Return the workers whose launcher has ended, without the processes of this job."""
    found = []
    for one in every:
        # Agents and editors in a Slurm step have a rank, too.
        by_slurm_alone = all(text.startswith("SLURM_") for text in one.variables)
        is_worker = not by_slurm_alone or (one.variables and "python" in one.command.partition(" ")[0])
        by_first = one.parent <= 1 and not _STARTS_RANKS.match(one.parent_command)
        if one.pid not in own and is_worker and (by_first or one.parent_name in _ADOPTS_ORPHANS):
            found.append(one)
    return found


def judge(
    workers: Sequence[Process], segments: Sequence[Segment], listener: Process | None, port: int | None
) -> Result:
    """Return the row, findings and facts of orphans; another job's `listener` holds the rendezvous port."""
    findings = list(_findings(workers, segments, listener, port))
    found = f"{len(workers)} worker(s), {len(segments)} segment(s) of shared memory"
    return Result(
        rows=[("orphans", found if findings else "nothing found")],
        findings=findings,
        facts={
            "left_workers": [asdict(one) for one in workers],
            "left_segments": [asdict(one) for one in segments],
        },
    )


def _findings(
    workers: Sequence[Process], segments: Sequence[Segment], listener: Process | None, port: int | None
) -> Iterator[Finding]:
    if workers:
        named = "; ".join(map(_described, workers[:_NAMED]))
        more = f"; and {len(workers) - _NAMED} more" if len(workers) > _NAMED else ""
        pids = " ".join(str(one.pid) for one in workers)
        yield problem(
            f"{len(workers)} worker(s) whose launcher has ended still run here: {named}{more}. They "
            f"use processors, memory and ports; to end them: `kill {pids}`."
        )
    if listener is not None:
        yield problem(
            f"Port {port} of the rendezvous is in use by process {listener.pid} "
            f"({_short(listener.command)}). End it, or set MASTER_PORT to a free port."
        )
    if segments:
        total = sum(one.bytes for one in segments)
        yield note(
            f"{len(segments)} segment(s) of shared memory ({bytes_text(total)}) in /dev/shm belong "
            f"to processes that have ended: remove {', '.join(one.name for one in segments[:_NAMED])}"
            f"{', ...' if len(segments) > _NAMED else ''}."
        )


def processes_here() -> list[Process]:
    """Return the processes of this user that have a launcher's variables."""
    import psutil

    found, me = [], os.getuid()
    for process in psutil.process_iter(["uids"]):
        with suppress(psutil.Error, OSError):
            uids = process.info["uids"]
            if uids is not None and uids.real == me and (ranks := _ranks_of(process)):
                found.append(_process(process, ranks))
    return found


def own_processes() -> set[int]:
    """Return the IDs of this process, its ancestors and descendants, and those that its launcher started."""
    import psutil

    me = psutil.Process()
    around = {me.pid}
    with suppress(psutil.Error):
        around |= {one.pid for one in me.children(recursive=True)}
        around |= {one.pid for one in me.parents()}
        parent = me.parent()
        # Process 1 adopts any process; only if it started this rank, its children are the other ranks.
        if parent is not None and (parent.pid != 1 or _ranks_of(me)):
            around |= {one.pid for one in parent.children(recursive=True)}
    return around


def listener_at(port: int, *, own: Collection[int]) -> Process | None:
    """Return this user's process that listens at a port; None if there is none, or it is one of `own`."""
    import psutil

    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return None if one.pid in own else _process(psutil.Process(one.pid), ())
    return None


def orphaned_segments(
    folder: Path = Path("/dev/shm"),  # noqa: S108 - the kernel's own
    proc: Path = Path("/proc"),
) -> list[Segment]:
    """Return torch's shared memory of ended processes, whose IDs are in its names.

    The list is empty if not all processes are visible, as in a container, whose memory others can share.
    """
    matches = [match for path in sorted(folder.glob("torch_*")) if (match := _SEGMENT.match(path.name))]
    living = numbers_of_the_living(proc) if matches else None
    found = []
    for name in [match.string for match in matches if living is not None and match[1] not in living]:
        with suppress(OSError):
            found.append(Segment(name=name, bytes=(folder / name).stat().st_size))
    return found


def _ranks_of(process: "psutil.Process") -> tuple[str, ...]:
    """Return the rank variables of a process, with the values at the start of its program."""
    environment = process.environ()
    return tuple(f"{name}={environment[name]}" for name in _RANK if environment.get(name))


def _process(process: "psutil.Process", ranks: tuple[str, ...]) -> Process:
    import psutil

    parent = process.parent()
    ports: set[int] = set()
    with suppress(psutil.Error, OSError):
        ask = getattr(process, "net_connections", None) or process.connections  # the name before psutil 6
        ports = {one.laddr.port for one in ask(kind="tcp") if one.status == psutil.CONN_LISTEN}
    return Process(
        pid=process.pid,
        parent=0 if parent is None else parent.pid,
        parent_name="" if parent is None else parent.name(),
        parent_command="" if parent is None else without_credentials(" ".join(parent.cmdline())),
        command=without_credentials(" ".join(process.cmdline())),  # masked before it is shortened
        age_s=max(0.0, time.time_ns() / 1e9 - process.create_time()),
        ports=tuple(sorted(ports)),
        variables=ranks,
    )


def _described(one: Process) -> str:
    ports = f", listens at {', '.join(map(str, one.ports))}" if one.ports else ""
    return f"{one.pid} ({_short(one.command)}, {one.variables[0]}, since {seconds_text(one.age_s)}{ports})"


def _short(command: str) -> str:
    return command if len(command) <= 60 else f"{command[:57]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A folder or segment of a dead run that was removed, or could not be."""

    path: str
    bytes: int
    kept: str = ""  # why it is still there; empty if it was removed

    def in_words(self) -> str:
        """Return what happened to it, as a line."""
        return (
            f"left {self.path}: {self.kept}"
            if self.kept
            else f"removed {self.path} ({bytes_text(self.bytes)})"
        )


def clean(
    parents: Sequence[Path] | None = None,
    memory: Path = Path("/dev/shm"),  # noqa: S108 - the kernel's own
) -> list[Cleaned]:
    """Remove temporary folders and shared memory whose owners are dead; return what was found.

    By default, `parents` of the folders are the temporary directory and the working folder.
    """
    where = None if parents is None else list(parents)
    sizes = {one.path: _bytes(one.path) for one in owned_folders.orphans(where)}
    removed = owned_folders.remove_dead(where)
    found = [Cleaned(path=str(path), bytes=sizes.get(path, 0)) for path in removed]
    for one in owned_folders.orphans(where):
        kept = "its owner can be alive on another host or in another container"
        if one.life == "dead":
            kept = "it could not be removed"
        found.append(Cleaned(path=str(one.path), bytes=sizes.get(one.path, 0), kept=kept))
    for segment in orphaned_segments(memory):
        path = memory / segment.name
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                path.unlink()
                found.append(Cleaned(path=str(path), bytes=segment.bytes))
    return found


def _bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):  # follows no links
        for name in names:
            with suppress(OSError):
                total += (Path(path) / name).lstat().st_size
    return total
