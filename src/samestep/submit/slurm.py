"""Describes a Slurm job, and writes the script that sbatch reads.

The workers are the tasks of Slurm, started by ``srun``, or children of one samestep on each node::

    launch = tasks      srun --ntasks-per-node=4     samestep run train.py       (Slurm starts the workers)
    launch = node       srun --ntasks-per-node=1     samestep run -n 8 train.py  (samestep starts them)
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.errors import PREEMPTED, UsageError
from samestep.base.units import counted
from samestep.submit.job_command import JobCommand
from samestep.submit.node_sizes import NodeSizes
from samestep.submit.shell import command, comment, directive, explained, quoted
from samestep.submit.site_defaults import SlurmSite

WARNED = 128 + signal.SIGUSR1
"""The exit code of a program that the warning signal has ended."""
MOST_STARTS = 100
"""Number of starts after which a requeued job ends, in case it makes no progress."""
_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(\d+)(?::(\d+))?(?::(?P<third>\d+))?\Z")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, or days-hours:minutes:seconds."""
_EARLY_S = 60  # seconds by which Slurm may send the warning too early
Launch: TypeAlias = Literal["tasks", "node"]
LAUNCHES: tuple[Launch, ...] = ("tasks", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest(NodeSizes):
    """The resources of one job."""

    name: str  # of the job
    site: SlurmSite  # further requests, and the software of the job
    launch: Launch = "tasks"  # whether Slurm starts each worker, or samestep on each node
    output: str  # the log, with Slurm's ``%j`` for the number of the job
    python: str  # the interpreter that submits

    def __post_init__(self) -> None:
        if self.launch not in LAUNCHES:
            raise UsageError(f"--launch {self.launch!r} is not one of {', '.join(LAUNCHES)}.")
        super(SlurmRequest, self).__post_init__()  # with slots=True, super() without arguments fails


def written(*paragraphs: Sequence[str]) -> str:
    """Return a script of these paragraphs; empty ones are left out."""
    return "#!/bin/bash\n" + "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def head(asked: SlurmRequest, *, by: str) -> list[str]:
    """Return the lines that sbatch reads; `by` is the command that writes them."""
    each = ", with a GPU each" if asked.per_node == asked.gpus_per_node else ""
    return [
        comment(f"{asked.name}: {counted(asked.workers, 'worker')} on {counted(asked.nodes, 'node')}{each}."),
        comment(f"Written by {by}; sbatch takes this file as it is."),
        *_size(asked),
        *_site(asked.site),
        directive("--output", asked.output),
    ]


def software(site: SlurmSite) -> list[str]:
    """Return the lines that set up the software."""
    return [*site.preparation(), "export PYTHONUNBUFFERED=1  # the log grows with every line printed"]


def samestep(asked: SlurmRequest) -> list[str]:
    """Return the words that call samestep in a task, quoted for a shell."""
    site = asked.site
    return [*site.within(gpus=asked.gpus_per_node > 0), *site.python(asked.python), "-m", "samestep"]


def srun_flags(asked: SlurmRequest, *, ends_together: bool) -> list[tuple[str, str]]:
    """Return the flags of srun, quoted for a shell, each with its purpose.

    With `ends_together`, a failed worker ends the others.
    """
    site, flags = asked.site, []
    if site.cpus_per_task is not None:
        why = "srun does not take it from the job (Slurm 22.05 and later)"
        flags.append(('--cpus-per-task="$SLURM_CPUS_PER_TASK"', why))
    if ends_together:
        flags.append(("--kill-on-bad-exit=1", "a failed worker ends the others"))
    if site.container and site.container_runtime == "pyxis":
        flags.append(("--container-image=" + quoted([site.container])[0], "the workers' container"))
        flags.append(('--container-mounts="$PWD"', "this folder is mounted in it,"))
        flags.append(('--container-workdir="$PWD"', "and is the working folder"))
    return flags


def _size(asked: SlurmRequest) -> list[str]:
    tasks = asked.per_node if asked.launch == "tasks" else 1
    lines = [
        directive("--job-name", asked.name),
        directive("--nodes", asked.nodes),
        directive("--ntasks-per-node", tasks),
    ]
    if asked.gpus_per_node:
        lines.append(directive("--gpus-per-node", asked.gpus_per_node))
    if asked.site.cpus_per_task is not None:
        lines.append(directive("--cpus-per-task", asked.site.cpus_per_task * asked.per_node // tasks))
    return lines


def _site(site: SlurmSite) -> list[str]:
    asked = {
        "--mem": site.mem,
        "--time": site.time,
        "--partition": site.partition,
        "--account": site.account,
        "--qos": site.qos,
        "--reservation": site.reservation,
        "--constraint": site.constraint,
    }
    lines = [directive(flag, value) for flag, value in asked.items() if value]
    # User-defined options, quoted for sbatch.
    return lines + [directive(one.removeprefix("#SBATCH").strip()) for one in site.directives]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob(SlurmRequest):
    """A Slurm job."""

    command: JobCommand  # the command that each worker runs
    # seconds before the time limit at which the workers get a signal, after which the job is requeued; None
    # for a job that ends at its limit
    warning_s: int | None = None

    def __post_init__(self) -> None:
        super(SlurmJob, self).__post_init__()
        if self.warning_s is not None and self.warning_s < 1:
            raise UsageError(f"--warning is {self.warning_s}; give at least 1.")
        limit_s = seconds_of(self.site.time)
        if self.warning_s is not None and limit_s is not None and limit_s <= self.warning_s + _EARLY_S:
            raise UsageError(
                f"--time {self.site.time} is too short for --warning {self.warning_s}, since Slurm may warn "
                f"{_EARLY_S} s earlier; ask for more time, or a shorter warning."
            )


def seconds_of(limit: str) -> int | None:
    """Return a time limit of sbatch in seconds; None for no limit, or one in another notation.

    >>> seconds_of("90"), seconds_of("1:30"), seconds_of("1:00:00"), seconds_of("2-0"), seconds_of("1-1:01")
    (5400, 90, 3600, 172800, 90060)
    """
    found = _LIMIT.match(limit)
    if found is None:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found["days"] is not None or found["third"] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third or None
    return first * 60 + second or None


def script(job: SlurmJob) -> str:
    """Return the script of `job`; pure."""
    return written(
        [*head(job, by="samestep submit slurm"), *_requeue(job)], software(job.site), _start(job), _end(job)
    )


def _requeue(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        comment(f"The workers get SIGUSR1 at least {job.warning_s} s before the time limit. They finish"),
        comment("the step and write a checkpoint, and the job is requeued under its number."),
        directive("--signal", f"USR1@{job.warning_s}"),
        directive("--requeue"),
        directive("--open-mode", "append"),
    ]


def _start(job: SlurmJob) -> list[str]:
    flags = srun_flags(job, ends_together=job.warning_s is None)
    work = job.command
    if job.warning_s is not None:
        work = work.resumable(f'runs/{quoted([job.command.name])[0]}-"$SLURM_JOB_ID"')
    words = work.words(job.workers if job.launch == "node" and job.per_node > 1 else None)
    return [*explained(flags), command(["srun", *(flag for flag, _ in flags)], [*samestep(job), *words])]


def _end(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        "code=$?",
        comment(
            f"{PREEMPTED}: stopped after a checkpoint; {WARNED}: ended by the signal. Both can be resumed."
        ),
        f'if [ "$code" -eq {PREEMPTED} ] || [ "$code" -eq {WARNED} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_STARTS} ]; then',
        '        echo "samestep: the job is requeued" >&2',
        '        scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        f'        echo "samestep: the job was requeued {MOST_STARTS} times and ends; read its log" >&2',
        "    fi",
        "fi",
        'exit "$code"',
    ]
