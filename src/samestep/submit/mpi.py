"""A job of Open MPI or MPICH as a value, and as a script whose one command says what each flag is for."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.submit.hosts import LOCAL, Host
from samestep.submit.site import MpiSite
from samestep.submit.words import command, comment, explained, quoted
from samestep.submit.work import Work

FLAVOURS = ("openmpi", "mpich")
_SAYS = {"openmpi": "Open MPI", "mpich": "HYDRA"}
_PORT = "$((15000 + RANDOM % 14000))"

Flags = list[tuple[str, str]]
"""Flags as a shell reads them, each with what it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob:
    """One job.

    Args:
        work: what each worker runs.
        name: of the job.
        hosts: where, and how many workers each takes.
        workers: in total; the hosts are filled in turn.
        flavour: ``openmpi`` or ``mpich``.
        mpirun: the program that starts it.
        site: how hosts are reached, and where the programs are.
        folder: where each worker starts.
        python: the interpreter that submits.
        as_root: whether root submits, which Open MPI wants to be told.
        forwarded: names of variables that the workers on other hosts are to have as well.
    """

    work: Work
    name: str
    hosts: tuple[Host, ...]
    workers: int
    flavour: str
    mpirun: str = "mpirun"
    site: MpiSite
    folder: Path
    python: str
    as_root: bool = False
    forwarded: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        room = sum(host.slots for host in self.hosts)
        if not 1 <= self.workers <= room:
            listed = ",".join(map(str, self.hosts))
            raise UsageError(f"-n {self.workers} workers, but the hosts have room for 1 to {room}: {listed}.")
        first = self.hosts[0].name
        if first in LOCAL and len(self.hosts) > 1:
            raise UsageError(
                f"rank 0 is on {first}, which is {self.hosts[1].name} itself for the workers there: they "
                "would look for it in vain. Give this host by the name that the others know."
            )


def flavour_of(version: str) -> str | None:
    """Return whose mpirun says this about its version; None for another.

    >>> flavour_of("mpirun (Open MPI) 4.1.4"), flavour_of("HYDRA build details:"), flavour_of("Intel(R) MPI")
    ('openmpi', 'mpich', None)
    """
    return next((name for name, sign in _SAYS.items() if sign.lower() in version.lower()), None)


def find(flavour: str, *, version_of: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the flavour and the program that starts jobs of it.

    Args:
        flavour: as asked for; empty for whatever there is.
        version_of: returns what a program says about its version; None where there is no such program.

    Raises:
        UsageError: there is none, or it is neither Open MPI nor MPICH.
    """
    if flavour and flavour not in FLAVOURS:
        raise UsageError(f"--flavour {flavour!r} is neither of {' and '.join(FLAVOURS)}.")
    names = [f"mpirun.{flavour}", "mpirun", "mpiexec"] if flavour else ["mpirun", "mpiexec"]
    others = []
    for name in names:
        version = version_of(name)
        if version is None:
            continue
        found = flavour_of(version)
        if found is not None and flavour in ("", found):
            return found, name
        others.append(f"{name} is {(version.strip().splitlines() or ['silent'])[0]}")
    wanted = flavour or "Open MPI or MPICH"
    seen = f" ({'; '.join(others)})" if others else ""
    raise UsageError(
        f"no mpirun of {wanted} is on the PATH{seen}. Load its module; with --dry-run --flavour says which."
    )


def script(job: MpiJob) -> str:
    """Return the script of `job`; pure."""
    flags = _openmpi(job) if job.flavour == "openmpi" else _mpich(job)
    samestep = [*job.site.within(gpus=False), *job.site.python(job.python), "-m", "samestep"]
    where = " + ".join(f"{host.name} x {host.slots}" for host in job.hosts)
    head = [
        "#!/bin/bash",
        comment(f"{job.name}: {counted(job.workers, 'worker')} on {where}."),
        comment("Written by samestep submit mpi; bash takes this file as it is."),
    ]
    prepared = [*job.site.preparation(), "export PYTHONUNBUFFERED=1  # the log grows with every line printed"]
    run = command([job.mpirun, *(flag for flag, _ in flags)], [*samestep, *job.work.words()])
    return "\n".join([*head, *prepared, *_ssh(job), "", *explained(flags), run]) + "\n"


def _openmpi(job: MpiJob) -> Flags:
    flags = [
        (f"-np {job.workers}", "workers in total"),
        ("--host " + quoted([",".join(map(str, job.hosts))])[0], "where, and how many on each"),
        ("--map-by slot", "neighbouring ranks share a host"),
        ("--bind-to none", "else a rank gets one core; samestep shares them out"),
        ("--wdir " + quoted([str(job.folder)])[0], "each worker starts in this folder"),
    ]
    if job.as_root:
        flags.append(("--allow-run-as-root", "you are root"))
    flags += [(f"-x {name}={value}", why) for name, value, why in _variables(job)]
    loaded = ("LD_LIBRARY_PATH", "PATH") if job.site.modules else ()
    names = dict.fromkeys(("PYTHONUNBUFFERED", *job.forwarded, *loaded))
    flags += [(f"-x {name}", "as it is set here") for name in names]
    if job.site.ssh != "ssh":
        flags.append(("--mca plm_rsh_agent " + quoted([job.site.ssh])[0], "reaches the other hosts"))
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        flags.append((f"--mca oob_tcp_if_include {value}", "mpirun's own messages take this interface"))
    return flags


def _mpich(job: MpiJob) -> Flags:
    flags = [
        (f"-n {job.workers}", "workers in total"),
        ("-hosts " + quoted([",".join(map(str, job.hosts))])[0], "where, and how many on each"),
        ("-bind-to none", "samestep shares the cores out itself"),
        ("-wdir " + quoted([str(job.folder)])[0], "each worker starts in this folder"),
    ]
    flags += [(f"-genv {name} {value}", why) for name, value, why in _variables(job)]
    if job.site.ssh != "ssh":
        reach = shlex.split(job.site.ssh)[0]
        flags += [
            ("-launcher ssh", "hosts are reached over ssh,"),
            ("-launcher-exec " + quoted([reach])[0], "or what takes its place"),
        ]
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        flags.append((f"-iface {value}", "mpiexec's own messages take this interface"))
    return flags


def _variables(job: MpiJob) -> list[tuple[str, str, str]]:
    """Return the variables that the workers are given, each with what it is for."""
    found = []
    if any(host.name not in LOCAL for host in job.hosts):
        master = quoted([job.hosts[0].name.rpartition("@")[2]])[0]  # ssh's user is no part of the address
        if job.flavour == "openmpi":
            found.append(("MASTER_ADDR", master, "where the workers meet: the host of rank 0"))
        elif job.work.verb == "run":
            # A script may call MPI_Init: Hydra then cannot be asked for the address before.
            found.append(("MASTER_ADDR", master, "where the workers meet: the host of rank 0,"))
            found.append(("MASTER_PORT", _PORT, "and a port on it, another at each start"))
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        found += [
            (f"{library}_SOCKET_IFNAME", value, f"{name}'s messages take this interface")
            for library, name in (("GLOO", "Gloo"), ("NCCL", "NCCL"))
        ]
    return found


def _ssh(job: MpiJob) -> list[str]:
    """Return what MPICH reads about ssh from the environment: it takes no arguments elsewhere."""
    extra = shlex.split(job.site.ssh)[1:]
    if job.flavour != "mpich" or not extra:
        return []
    return [f"export HYDRA_LAUNCHER_EXTRA_ARGS={quoted([' '.join(extra)])[0]}"]


def forwarded(names: list[str]) -> tuple[str, ...]:
    """Return those of the variables set here that workers on other hosts are to have too.

    >>> forwarded(["HOME", "NCCL_DEBUG", "PYTHONPATH"])
    ('NCCL_DEBUG', 'PYTHONPATH')
    """
    wanted = re.compile(r"(PYTHONPATH|LD_LIBRARY_PATH|OMP_NUM_THREADS|(NCCL|GLOO|TORCH|SAMESTEP)_\w+)\Z")
    return tuple(name for name in sorted(names) if wanted.match(name))
