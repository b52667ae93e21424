"""A job of Slurm as a value, and as the script that sbatch reads.

Workers are Slurm's tasks, started by ``srun``, or the children of one samestep on each node::

    launch = tasks      srun --ntasks-per-node=4     samestep run train.py       (Slurm starts the workers)
    launch = node       srun --ntasks-per-node=1     samestep run -n 8 train.py  (samestep starts them)
"""

import re
import signal
from dataclasses import dataclass

from samestep.base.errors import PUT_OFF, UsageError
from samestep.submit.request import SlurmRequest, head, samestep, software, srun_flags, written
from samestep.submit.words import command, comment, directive, explained, quoted
from samestep.submit.work import Work

WARNED = 128 + signal.SIGUSR1
"""The exit code of a program that the warning itself has ended."""

MOST_STARTS = 100
"""A job that gets nowhere between two starts ends after so many."""

_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(\d+)(?::(\d+))?(?::(?P<third>\d+))?\Z")
"""Minutes, minutes:seconds, hours:minutes:seconds, or days-hours and so on."""

_EARLY_S = 60
"""So much earlier than asked for Slurm may send the warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob(SlurmRequest):
    """One job.

    Args:
        work: what each worker runs.
        warning_s: seconds before the end of its time at which the job is told, and then requeued; None
            for a job that ends when its time does.
    """

    work: Work
    warning_s: int | None = None

    def __post_init__(self) -> None:
        super(SlurmJob, self).__post_init__()  # slots: the short form does not know this class
        if self.warning_s is not None and self.warning_s < 1:
            raise UsageError(f"--warning {self.warning_s}: there must be at least 1.")
        limit_s = seconds_of(self.site.time)
        if self.warning_s is not None and limit_s is not None and limit_s <= self.warning_s + _EARLY_S:
            raise UsageError(
                f"--time {self.site.time} and --warning {self.warning_s}: Slurm may warn {_EARLY_S} s "
                "earlier, at the job's very start, and it would be queued again, for ever. "
                "Ask for more time, or a shorter warning."
            )


def seconds_of(limit: str) -> int | None:
    """Return a time limit of sbatch in seconds; None for none, or one in other words.

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
    *, nodes: int, gpus_per_node: int, workers: int | None, nproc_per_node: int | None, said: int | None
) -> int:
    """Return how many workers each node has.

    Args:
        nodes: how many there are.
        gpus_per_node: if nothing else is said, each is a worker's.
        workers: in total, if said.
        nproc_per_node: on each node, if said.
        said: in total, if said among the arguments of what is run.

    Raises:
        UsageError: they contradict each other, or the workers cannot be shared evenly.
    """
    if workers is not None and said is not None and workers != said:
        raise UsageError(f"-n {workers} and -n {said}: how many workers are there? Give one of the two.")
    total = said if workers is None else workers
    if total is None:
        return max(gpus_per_node, 1) if nproc_per_node is None else nproc_per_node
    if nproc_per_node is not None and nproc_per_node * nodes != total:
        raise UsageError(
            f"-n {total} workers in total, but --nproc-per-node {nproc_per_node} on {nodes} node(s) makes "
            f"{nproc_per_node * nodes}. Give one of the two."
        )
    if total < 1 or nodes < 1 or total % nodes:
        raise UsageError(
            f"-n {total} workers cannot be shared evenly by --nodes {nodes}. Ask for a multiple of the nodes."
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
        comment(f"The workers get SIGUSR1 at least {job.warning_s} s before the job's time is over: they"),
        comment("finish the step, write a checkpoint, and the job is queued again under its number."),
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
            f"{PUT_OFF}: stopped after a checkpoint; {WARNED}: ended by the warning itself. Both can go on."
        ),
        f'if [ "$code" -eq {PUT_OFF} ] || [ "$code" -eq {WARNED} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_STARTS} ]; then',
        '        echo "samestep: the job goes back to the queue" >&2',
        '        scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        f'        echo "samestep: queued again {MOST_STARTS} times, that is enough: read the log" >&2',
        "    fi",
        "fi",
        'exit "$code"',
    ]
