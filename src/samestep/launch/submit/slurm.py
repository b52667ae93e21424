"""Describes a Slurm job, and writes the script that sbatch reads.

The workers are the tasks of Slurm, started by ``srun``, or children of one samestep on each node::

    launch = tasks      srun --ntasks-per-node=4     samestep run train.py       (Slurm starts the workers)
    launch = node       srun --ntasks-per-node=1     samestep run -n 8 train.py  (samestep starts them)
"""

import re
import signal
from dataclasses import dataclass

from samestep.base.errors import PUT_OFF, UsageError
from samestep.launch.submit.job_command import Work
from samestep.launch.submit.quoting import command, comment, directive, explained, quoted
from samestep.launch.submit.resources import SlurmRequest, head, samestep, software, srun_flags, written

WARNED = 128 + signal.SIGUSR1
"""The exit code of a program that the warning signal has ended."""

MOST_STARTS = 100
"""Number of starts after which a requeued job ends, in case it makes no progress."""

_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(\d+)(?::(\d+))?(?::(?P<third>\d+))?\Z")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, or days-hours:minutes:seconds."""

_EARLY_S = 60
"""Seconds by which Slurm may send the warning too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob(SlurmRequest):
    """A Slurm job.

    Args:
        work: the command that each worker runs.
        warning_s: seconds before the time limit at which the workers get a signal, after which the job is
            requeued; None for a job that ends at its limit.
    """

    work: Work
    warning_s: int | None = None

    def __post_init__(self) -> None:
        super(SlurmJob, self).__post_init__()  # with slots=True, super() without arguments fails
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


def per_node(
    *, nodes: int, gpus_per_node: int, workers: int | None, nproc_per_node: int | None, in_command: int | None
) -> int:
    """Return the number of workers on each node.

    Args:
        nodes: number of nodes.
        gpus_per_node: GPUs of each node; the number of workers if none is given.
        workers: number of workers, if it is given.
        nproc_per_node: number of workers on each node, if it is given.
        in_command: number of workers among the arguments of the job's command, if it is given.

    Raises:
        UsageError: the numbers contradict each other, or the workers cannot be divided evenly.
    """
    if workers is not None and in_command is not None and workers != in_command:
        raise UsageError(f"-n {workers} and -n {in_command} contradict each other; give only one of them.")
    total = in_command if workers is None else workers
    if total is None:
        return max(gpus_per_node, 1) if nproc_per_node is None else nproc_per_node
    if nproc_per_node is not None and nproc_per_node * nodes != total:
        raise UsageError(
            f"-n is {total}, but --nproc-per-node {nproc_per_node} on {nodes} node(s) is "
            f"{nproc_per_node * nodes} workers; give only one of them."
        )
    if total < 1 or nodes < 1 or total % nodes:
        raise UsageError(
            f"-n {total} workers cannot be divided evenly by --nodes {nodes}; give a multiple of the nodes."
        )
    return total // nodes


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
    work = job.work
    if job.warning_s is not None:
        work = work.resumable(f'runs/{quoted([job.work.name])[0]}-"$SLURM_JOB_ID"')
    words = work.words(job.workers if job.launch == "node" and job.per_node > 1 else None)
    return [*explained(flags), command(["srun", *(flag for flag, _ in flags)], [*samestep(job), *words])]


def _end(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        "code=$?",
        comment(
            f"{PUT_OFF}: stopped after a checkpoint; {WARNED}: ended by the signal. Both can be resumed."
        ),
        f'if [ "$code" -eq {PUT_OFF} ] || [ "$code" -eq {WARNED} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_STARTS} ]; then',
        '        echo "samestep: the job is requeued" >&2',
        '        scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        f'        echo "samestep: the job was requeued {MOST_STARTS} times and ends; read its log" >&2',
        "    fi",
        "fi",
        'exit "$code"',
    ]
