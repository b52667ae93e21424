"""Describes a job for Open MPI or MPICH, and writes its script, which explains each flag of mpirun."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.submit.job_command import JobCommand
from samestep.launch.submit.mpi_hosts import LOCAL, Host, unusable
from samestep.launch.submit.shell import TIMED_OUT, command, comment, explained, quoted, run_command
from samestep.launch.submit.site_defaults import MpiSite

FLAVORS = ("openmpi", "mpich")
_VERSION_SIGNS = {"openmpi": "Open MPI", "mpich": "HYDRA"}
_PORT = "$((15000 + RANDOM % 14000))"
Flags = list[tuple[str, str]]
"""Flags, quoted for a shell, each with its purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob:
    """A job for Open MPI or MPICH."""

    command: JobCommand  # the command that each worker runs
    name: str  # of the job
    hosts: tuple[Host, ...]  # the hosts, with the number of workers of each
    workers: int  # number of workers; the hosts are filled in their order
    flavor: str  # ``openmpi`` or ``mpich``
    mpirun: str = "mpirun"  # the program that starts it
    site: MpiSite  # the connection to the hosts, and the software of the job
    folder: Path  # the working folder of each worker
    python: str  # the interpreter that submits
    as_root: bool = False  # whether root submits, for which Open MPI needs a flag
    forwarded: tuple[str, ...] = field(default=())  # names of variables that workers on other hosts get too

    def __post_init__(self) -> None:
        room = sum(host.slots for host in self.hosts)
        if not 1 <= self.workers <= room:
            listed = ",".join(map(str, self.hosts))
            raise UsageError(f"-n {self.workers} does not fit the hosts {listed}; give 1 to {room}.")
        first = self.hosts[0].name
        if first in LOCAL and len(self.hosts) > 1:
            raise UsageError(
                f"rank 0 is on {first}, an address that the workers on {self.hosts[1].name} cannot reach; "
                "give the name of this host that the other hosts use."
            )


def flavor_of(version: str) -> str | None:
    """Return the flavor of mpirun with this version text; None for another program.

    >>> flavor_of("mpirun (Open MPI) 4.1.4"), flavor_of("HYDRA build details:"), flavor_of("Intel(R) MPI")
    ('openmpi', 'mpich', None)
    """
    return next((name for name, sign in _VERSION_SIGNS.items() if sign.lower() in version.lower()), None)


def mpirun_of(site: MpiSite, *, here: bool) -> tuple[str, str]:
    """Return the flavor, and the program that starts its jobs.

    With `here`, the jobs start on this machine.

    Raises:
        UsageError: there is none, or its flavor is unknown.
    """
    if site.flavor in FLAVORS and not here:
        return site.flavor, "mpirun"
    if site.modules:  # one of them provides mpirun, so it cannot be asked for its version here
        if not site.flavor:
            raise UsageError("the MPI of the modules is unknown; give --flavor openmpi or --flavor mpich.")
        return site.flavor, "mpirun"
    return find(site.flavor)


def _version(program: str) -> str | None:
    """Return the version text of a program; None if it does not run."""
    answer = run_command([program, "--version"], timeout_s=30)
    return answer.out or answer.err if answer.code < TIMED_OUT else None


def find(flavor: str, *, version_of: Callable[[str], str | None] = _version) -> tuple[str, str]:
    """Return the flavor, and the program on the PATH that starts its jobs.

    `flavor` is empty for any. `version_of` returns the version text of a program, None if there is no such
    one.

    Raises:
        UsageError: there is none, or it is neither Open MPI nor MPICH.
    """
    if flavor and flavor not in FLAVORS:
        raise UsageError(f"--flavor {flavor!r} is not one of {', '.join(FLAVORS)}.")
    names = [f"mpirun.{flavor}", "mpirun", "mpiexec"] if flavor else ["mpirun", "mpiexec"]
    others = []
    for name in names:
        version = version_of(name)
        if version is None:
            continue
        found = flavor_of(version)
        if found is not None and flavor in ("", found):
            return found, name
        others.append(f"{name} is {(version.strip().splitlines() or ['silent'])[0]}")
    wanted = flavor or "Open MPI or MPICH"
    found_text = f" ({'; '.join(others)})" if others else ""
    raise UsageError(
        f"no mpirun of {wanted} is on the PATH{found_text}; load its module, or give --dry-run and --flavor."
    )


def check_hosts(job: MpiJob, target: str) -> None:
    """Check the other hosts before anything is written.

    Raises:
        UsageError: some of them cannot run the job.
    """
    python = "" if job.site.container or job.site.lines else shlex.split(job.site.python(job.python)[0])[0]
    program = target if Path(target).is_file() else None
    wrong = unusable(job.hosts, ssh=job.site.ssh, folder=job.folder, program=program, python=python)
    if wrong:
        raise UsageError(f"{len(wrong)} of {len(job.hosts)} hosts cannot run the job: {'; '.join(wrong)}.")


def script(job: MpiJob) -> str:
    """Return the script of `job`; pure."""
    flags = _openmpi(job) if job.flavor == "openmpi" else _mpich(job)
    samestep = [*job.site.within(gpus=False), *job.site.python(job.python), "-m", "samestep"]
    where = " + ".join(f"{host.name} x {host.slots}" for host in job.hosts)
    head = [
        "#!/bin/bash",
        comment(f"{job.name}: {counted(job.workers, 'worker')} on {where}."),
        comment("Written by samestep submit mpi; bash takes this file as it is."),
    ]
    prepared = [*job.site.preparation(), "export PYTHONUNBUFFERED=1  # the log grows with every line printed"]
    run = command([job.mpirun, *(flag for flag, _ in flags)], [*samestep, *job.command.words()])
    return "\n".join([*head, *prepared, *_ssh(job), "", *explained(flags), run]) + "\n"


def _openmpi(job: MpiJob) -> Flags:
    flags = [
        (f"-np {job.workers}", "workers in total"),
        ("--host " + quoted([",".join(map(str, job.hosts))])[0], "the hosts, and the workers on each"),
        ("--map-by slot", "consecutive ranks share a host"),
        ("--bind-to none", "samestep divides the cores among the ranks itself"),
        ("--wdir " + quoted([str(job.folder)])[0], "the working folder of each worker"),
    ]
    if job.as_root:
        flags.append(("--allow-run-as-root", "you are root"))
    flags += [(f"-x {name}={value}", why) for name, value, why in _variables(job)]
    loaded = ("LD_LIBRARY_PATH", "PATH") if job.site.modules else ()
    names = dict.fromkeys(("PYTHONUNBUFFERED", *job.forwarded, *loaded))
    flags += [(f"-x {name}", "the value that it has here") for name in names]
    if job.site.ssh != "ssh":
        flags.append(("--mca plm_rsh_agent " + quoted([job.site.ssh])[0], "connects to the other hosts"))
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        flags.append((f"--mca oob_tcp_if_include {value}", "mpirun's own messages use this interface"))
    return flags


def _mpich(job: MpiJob) -> Flags:
    flags = [
        (f"-n {job.workers}", "workers in total"),
        ("-hosts " + quoted([",".join(map(str, job.hosts))])[0], "the hosts, and the workers on each"),
        ("-bind-to none", "samestep divides the cores among the ranks itself"),
        ("-wdir " + quoted([str(job.folder)])[0], "the working folder of each worker"),
    ]
    flags += [(f"-genv {name} {value}", why) for name, value, why in _variables(job)]
    if job.site.ssh != "ssh":
        reach = shlex.split(job.site.ssh)[0]
        flags += [
            ("-launcher ssh", "connects to the hosts with ssh,"),
            ("-launcher-exec " + quoted([reach])[0], "or with this program"),
        ]
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        flags.append((f"-iface {value}", "mpiexec's own messages use this interface"))
    return flags


def _variables(job: MpiJob) -> list[tuple[str, str, str]]:
    """Return the variables of the workers, each with its value and its purpose."""
    found = []
    if any(host.name not in LOCAL for host in job.hosts):
        master = quoted([job.hosts[0].name.rpartition("@")[2]])[0]  # ssh's user is no part of the address
        if job.flavor == "openmpi":
            found.append(("MASTER_ADDR", master, "the rendezvous is on the host of rank 0"))
        elif job.command.verb == "run":
            # A script may call MPI_Init, after which Hydra no longer serves the address.
            found.append(("MASTER_ADDR", master, "the rendezvous is on the host of rank 0,"))
            found.append(("MASTER_PORT", _PORT, "on another port at each start"))
    if job.site.interface:
        value = quoted([job.site.interface])[0]
        found += [
            (f"{library}_SOCKET_IFNAME", value, f"{name}'s messages use this interface")
            for library, name in (("GLOO", "Gloo"), ("NCCL", "NCCL"))
        ]
    return found


def _ssh(job: MpiJob) -> list[str]:
    """Return the line that passes arguments of ssh to MPICH, which reads them only from the environment."""
    extra = shlex.split(job.site.ssh)[1:]
    if job.flavor != "mpich" or not extra:
        return []
    return [f"export HYDRA_LAUNCHER_EXTRA_ARGS={quoted([' '.join(extra)])[0]}"]


def forwarded(names: list[str]) -> tuple[str, ...]:
    """Return the names of the variables that workers on other hosts get too.

    >>> forwarded(["HOME", "NCCL_DEBUG", "PYTHONPATH"])
    ('NCCL_DEBUG', 'PYTHONPATH')
    """
    wanted = re.compile(r"(PYTHONPATH|LD_LIBRARY_PATH|OMP_NUM_THREADS|(NCCL|GLOO|TORCH|SAMESTEP)_\w+)\Z")
    return tuple(name for name in sorted(names) if wanted.match(name))
