"""Describes the machine of this process: cores, CPUs that it can use, NUMA nodes, memory, and versions.

A limit of a Linux control group, version 1 or 2, binds every group below it, so the tightest one between
this process's group and the root counts. Containers see their own group as the root of the mount; `mountinfo`
lists what is mounted where.
"""

import os
import platform
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import floor
from operator import index
from pathlib import Path

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import bytes_text, counted, whole

# Version 1 spells "no limit" as a huge number of bytes, rounded to pages.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and the file it is read from."""

    value: float
    source: Path


@dataclass(frozen=True, slots=True)
class _Mount:
    root: str
    point: Path
    controllers: frozenset[str]  # empty for version 2, which has one tree for all


def cpu_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest CPU quota of this process, in CPUs; None where there is none."""
    limits = []
    for group in _groups("cpu", proc):
        if (group / "cpu.max").is_file():
            words = _words(group / "cpu.max") or ["max"]  # a file that cannot be read is no limit
            quota, period = [*words, "100000"][:2]
            source = group / "cpu.max"
        else:
            source = group / "cpu.cfs_quota_us"
            quota, period = (*_words(source), "max")[0], (*_words(group / "cpu.cfs_period_us"), "0")[0]
        if quota not in {"max", "-1"} and int(period) > 0:
            limits.append(Limit(int(quota) / int(period), source))
    return min(limits, key=lambda limit: limit.value, default=None)


def memory_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest memory limit of this process, in bytes; None where there is none."""
    return _tightest("memory", ("memory.max", "memory.limit_in_bytes"), proc)


def process_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest limit of processes and threads together; None where there is none."""
    return _tightest("pids", ("pids.max",), proc)


def _tightest(controller: str, names: Sequence[str], proc: Path) -> Limit | None:
    limits = [
        Limit(int(word), group / name)
        for group in _groups(controller, proc)
        for name in names
        for word in _words(group / name)
        if word != "max" and int(word) < _UNLIMITED_BYTES
    ]
    return min(limits, key=lambda limit: limit.value, default=None)


def _groups(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and the groups above it, both versions."""
    mounts = list(_mounts(proc))
    for line in text_of(proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) if names else frozenset[str]()
        if controllers and controller not in controllers:
            continue
        for mount in mounts:
            if mount.controllers == controllers or (controllers and controller in mount.controllers):
                yield from _upwards(mount, path)


def _upwards(mount: _Mount, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents up to the mount point, as far as they exist."""
    inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root) else "/"
    folder = mount.point / inside.lstrip("/")
    for group in (folder, *folder.parents):
        if group.is_dir():
            yield group
        if group == mount.point:
            return


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Yield the mounted cgroup trees.

    A line reads ``31 23 0:28 ROOT POINT rw - cgroup cgroup rw,cpu,cpuacct`` (proc(5), mountinfo).
    """
    for line in text_of(proc / "self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2) if right.count(" ") >= 2 else ("", "", "")
        if kind not in {"cgroup", "cgroup2"}:
            continue
        root, point = left.split(" ")[3:5]
        controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
        yield _Mount(root, Path(point), controllers)


def _words(path: Path) -> list[str]:
    return text_of(path).split()


_SYSTEM = Path("/sys/devices/system")
_LEAST_WORKER_BYTES = 64 << 20  # a worker of a tiny model has 83 MiB of its own, with torch 2.14 on Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShare:
    """The CPUs that this process can use."""

    allowed: tuple[int, ...]  # numbers of the logical processors in the affinity mask
    cores: int  # physical cores among them; two hardware threads of one core compute little more than one
    quota: float | None = None  # CPU time that the control group grants, in CPUs, or None
    quota_source: str = ""  # the file that sets the quota
    machine: int  # logical processors of the whole machine
    granted: int | None = None  # logical processors that the scheduler gives this job here, or None

    @property
    def granted_cores(self) -> int | None:
        """Cores that the scheduler gives this job here, which may use some threads of each; or None."""
        return None if self.granted is None else max(1, self.granted * self.cores // (len(self.allowed) or 1))

    @property
    def usable(self) -> int:
        """Threads that can compute at the same time; at least 1."""
        quota = self.cores if self.quota is None else floor(self.quota)
        return max(1, min(self.cores, quota, self.granted_cores or self.cores))

    @property
    def limited_by(self) -> str:
        """The limit that keeps this process from using the whole machine, in words."""
        if self.granted_cores is not None and self.granted_cores == self.usable < self.cores:
            return f"Slurm's grant of {self.granted} CPUs (SLURM_CPUS_ON_NODE)"
        if self.quota is not None and floor(self.quota) < self.cores:
            return f"cgroup quota of {self.quota:g} CPUs in {self.quota_source}"
        if len(self.allowed) < self.machine:
            return f"affinity mask of {len(self.allowed)} of {self.machine} CPUs"
        return "the machine itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware and software of a measurement, recorded with it."""

    hostname: str
    system: str
    processor: str
    cpu: CpuShare
    memory_bytes: int
    python: str
    torch: str
    samestep: str


def machine() -> Machine:
    """Return the machine of this process. Does not import torch; its version is as installed."""
    return Machine(
        hostname=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        processor=processor(),
        cpu=cpu_share(),
        memory_bytes=memory_bytes(),
        python=platform.python_version(),
        torch=package_version("torch"),
        samestep=package_version("samestep"),
    )


def processor() -> str:
    """Return the name of the CPU model, as far as the system reports it."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine() if lines else platform.processor() or platform.machine())


def package_version(name: str) -> str:
    """Return the version of an installed package, or ``not installed``."""
    from importlib.metadata import (  # the import takes 20 ms, which ranks do without
        PackageNotFoundError,
        version,
    )

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def cpu_share(
    *,
    allowed: Collection[int] | None = None,
    machine_cpus: int | None = None,
    proc: Path = Path("/proc"),
    system: Path = _SYSTEM,
    environment: Environment | None = None,
) -> CpuShare:
    """Return the CPUs that this process can use.

    Args:
        allowed: the affinity mask, if not this process's.
        machine_cpus: logical processors of the machine, if not this one's.
        proc: the ``/proc`` folder.
        system: the folder of ``/sys`` with the CPUs and NUMA nodes.
        environment: variables of the scheduler, if not this process's own.
    """
    machine_cpus = machine_cpus or os.cpu_count() or 1
    mask = tuple(sorted(_affinity(machine_cpus) if allowed is None else allowed))
    limit = cpu_limit(proc)
    return CpuShare(
        allowed=mask,
        cores=len(cores(mask, system=system)) or 1,
        quota=None if limit is None else limit.value,
        quota_source="" if limit is None else str(limit.source),
        machine=machine_cpus,
        granted=_granted(env.snapshot() if environment is None else environment),
    )


def enough_for_all(shares: Sequence[CpuShare]) -> bool:
    """Return whether processes of one host, with these shares, can all compute at the same time.

    Processes bound to disjoint CPUs do not share them; quota and grant count for all processes together.
    """
    masks = [set(share.allowed) for share in shares]
    sharing = [sum(1 for peer in masks if mask & peer) for mask in masks]
    return all(
        share.cores >= among
        and (share.quota is None or share.quota >= len(shares))
        and (share.granted is None or share.granted >= len(shares))
        for share, among in zip(shares, sharing, strict=True)
    )


def _granted(environment: Environment) -> int | None:
    """Return the CPUs that Slurm grants on this node, which not every site enforces by affinity."""
    granted = environment.get("SLURM_CPUS_ON_NODE", "")
    on_its_node = "SLURMD_NODENAME" in environment  # a shell of salloc can be on another host
    return (whole(granted) or None) if on_its_node else None


def _affinity(machine_cpus: int) -> Collection[int]:
    ask = getattr(os, "sched_getaffinity", None)  # Linux only
    return range(machine_cpus) if ask is None else set(ask(0))


def memory_bytes() -> int:
    """Return the memory of the machine, or less where a control group grants less."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = memory_limit()
    return total if limit is None else min(total, int(limit.value))


MOST_PER_CORE = 16
"""Workers per core that start without ``--oversubscribe``; more are probably a typing error."""


def refuse_beyond_cores(workers: int) -> None:
    """Refuse many more workers than this host has cores, each of which waits for its turn in every step.

    Raises:
        UsageError: there are more than `MOST_PER_CORE` for each core.
    """
    usable = cpu_share().usable
    if workers > MOST_PER_CORE * usable:
        raise UsageError(
            f"-n {workers} is more than {MOST_PER_CORE} workers per core ({counted(usable, 'usable core')}). "
            f"Give -n {usable}, more nodes, or --oversubscribe to start them all the same."
        )


def refuse_beyond_memory(workers: int) -> None:
    """Refuse workers that this machine cannot hold: the system would kill other programs, too.

    Raises:
        UsageError: the memory is less than the workers have at the least.
    """
    usable = cpu_share().usable
    if workers > usable and (least := workers * _LEAST_WORKER_BYTES) > (memory := memory_bytes()):
        raise UsageError(
            f"{workers:,} workers on this node need at least {bytes_text(least)} of memory, and it has "
            f"{bytes_text(memory)}. Use {counted(usable, 'worker')}, one per usable core, or more nodes."
        )


def number_of_workers(number: int, call: str) -> int:
    """Return the number of workers that a call of a public function asks for.

    Raises:
        UsageError: `number` is no integer of 1 or more, or more than the memory can hold.
    """
    try:
        workers = index(number)  # NumPy's integers are integers, too
    except TypeError:
        workers = 0
    if workers < 1:
        raise UsageError(f"{call}: the number of workers must be an integer of 1 or more.")
    refuse_beyond_memory(workers)
    return workers


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core."""

    node: int  # NUMA node; 0 where unknown
    cpus: tuple[int, ...]  # numbers of its hardware threads that this process can use


def cores(allowed: Collection[int], *, system: Path = _SYSTEM) -> tuple[Core, ...]:
    """Return the cores that the logical processors `allowed` are part of, node by node."""
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for cpu in numbers(text_of(folder / "cpulist"))
    }
    threads: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(allowed):
        siblings = text_of(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")
        threads.setdefault(tuple(numbers(siblings)) or (cpu,), []).append(cpu)
    known = [Core(node_of.get(cpus[0], 0), tuple(cpus)) for cpus in threads.values()]
    return tuple(sorted(known, key=lambda core: (core.node, core.cpus)))


def gpu_nodes(
    visible: str | None, *, root: Path = Path("/"), opens: Callable[[Path], bool] | None = None
) -> tuple[int, ...]:
    """Return the NUMA node of each NVIDIA GPU that this process sees, by CUDA's numbers.

    Empty where the nodes are unknown: no NVIDIA GPU, a machine of one node, or an unknown name in `visible`.
    `visible` is ``CUDA_VISIBLE_DEVICES``, if it is set. `opens` returns whether a device file can be opened;
    schedulers deny the GPUs of other jobs.
    """
    opens = opens or _opens
    seen: list[tuple[str, int]] = []  # UUID and node
    for folder in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        pairs = (line.partition(":") for line in text_of(folder / "information").splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        if opens(root / f"dev/nvidia{facts.get('Device Minor', '')}"):
            node = text_of(root / f"sys/bus/pci/devices/{folder.name}/numa_node")
            seen.append((facts.get("GPU UUID", ""), int(node or -1)))
    chosen = _chosen(seen, visible)
    return () if any(node < 0 for node in chosen) else tuple(chosen)


def numbers(text: str) -> list[int]:
    """Parse a list of numbers in the kernel's format.

    >>> numbers("0-3,8")
    [0, 1, 2, 3, 8]
    """
    parsed: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip():
            parsed.extend(range(int(first), int(last or first) + 1))
    return parsed


def _chosen(seen: list[tuple[str, int]], visible: str | None) -> list[int]:
    if visible is None:
        return [node for _, node in seen]
    chosen = []
    for word in visible.split(","):
        name = word.strip()
        if name.isdecimal() and int(name) < len(seen):
            chosen.append(seen[int(name)][1])
        else:
            chosen += [node for uuid, node in seen if name and uuid.startswith(name)][:1] or [-1]
    return chosen


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
