"""Describes the machine of this process: CPUs that it can use, memory, and versions."""

import os
import platform
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from pathlib import Path

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.cgroup import cpu_limit, memory_limit
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import bytes_text, counted, whole

_SYS_CPU = Path("/sys/devices/system/cpu")
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
    sys_cpu: Path = _SYS_CPU,
    environment: Environment | None = None,
) -> CpuShare:
    """Return the CPUs that this process can use.

    Args:
        allowed: the affinity mask, if not this process's.
        machine_cpus: logical processors of the machine, if not this one's.
        proc: the ``/proc`` folder.
        sys_cpu: the ``/sys`` folder of the CPUs.
        environment: variables of the scheduler, if not this process's own.
    """
    machine_cpus = machine_cpus or os.cpu_count() or 1
    mask = tuple(sorted(_affinity(machine_cpus) if allowed is None else allowed))
    limit = cpu_limit(proc)
    return CpuShare(
        allowed=mask,
        cores=len(set(map(partial(_siblings, sys_cpu), mask))) or 1,
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
    sharing = [sum(1 for other in masks if mask & other) for mask in masks]
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


def _siblings(sys_cpu: Path, cpu: int) -> str:
    """Return the hardware threads of the core that a logical processor is part of, as its name."""
    return text_of(sys_cpu / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def memory_bytes() -> int:
    """Return the memory of the machine, or less where a control group grants less."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = memory_limit()
    return total if limit is None else min(total, int(limit.value))


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
