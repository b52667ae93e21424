"""A job of Slurm as a value, and as the script that sbatch reads.

Workers are Slurm's tasks, started by ``srun``, or the children of one samestep on each node::

    launch = tasks      srun --ntasks-per-node=4     samestep run train.py       (Slurm starts the workers)
    launch = node       srun --ntasks-per-node=1     samestep run -n 8 train.py  (samestep starts them)
"""

import signal
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.errors import PUT_OFF, UsageError
from samestep.submit.site import SlurmSite
from samestep.submit.words import command, comment, counted, directive, explained, quoted
from samestep.submit.work import Work

Launch: TypeAlias = Literal["tasks", "node"]
LAUNCHES: tuple[Launch, ...] = ("tasks", "node")

WARNED = 128 + signal.SIGUSR1
"""The exit code of a program that the warning itself has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job.

    Args:
        work: what each worker runs.
        name: of the job.
        nodes: how many.
        per_node: workers on each.
        gpus_per_node: GPUs of each node; 0 for none.
        site: what else to ask for, and where the programs are.
        launch: who starts the workers.
        warning_s: seconds before the end of its time at which the job is told, and then requeued; None
            for a job that ends when its time does.
        output: the log, with Slurm's ``%j`` for the number of the job.
        python: the interpreter that submits.
    """

    work: Work
    name: str
    nodes: int
    per_node: int
    gpus_per_node: int = 0
    site: SlurmSite
    launch: Launch = "tasks"
    warning_s: int | None = None
    output: str
    python: str

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--nodes", self.nodes, 1),
            ("--nproc-per-node", self.per_node, 1),
            ("--gpus-per-node", self.gpus_per_node, 0),
            ("--warning", 1 if self.warning_s is None else self.warning_s, 1),
        ):
            if value < least:
                raise UsageError(f"{flag} {value}: there must be at least {least}.")
        if 0 < self.gpus_per_node < self.per_node:
            raise UsageError(
                f"{self.per_node} workers on each node cannot share --gpus-per-node {self.gpus_per_node}: "
                "each needs a GPU of its own. Ask for more GPUs or fewer workers."
            )

    @property
    def workers(self) -> int:
        """Workers in total."""
        return self.nodes * self.per_node


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
    paragraphs = [_head(job), _software(job), _start(job), _end(job)]
    return "#!/bin/bash\n" + "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _head(job: SlurmJob) -> list[str]:
    each = ", each on a GPU of its own" if job.per_node == job.gpus_per_node else ""
    return [
        comment(f"{job.name}: {counted(job.workers, 'worker')} on {counted(job.nodes, 'node')}{each}."),
        comment("Written by samestep submit slurm; sbatch takes this file as it is."),
        *_size(job),
        *_site(job.site),
        directive("--output", job.output),
        *_requeue(job),
    ]


def _size(job: SlurmJob) -> list[str]:
    tasks = job.per_node if job.launch == "tasks" else 1
    lines = [
        directive("--job-name", job.name),
        directive("--nodes", job.nodes),
        directive("--ntasks-per-node", tasks),
    ]
    if job.gpus_per_node:
        lines.append(directive("--gpus-per-node", job.gpus_per_node))
    if job.site.cpus_per_task is not None:
        lines.append(directive("--cpus-per-task", job.site.cpus_per_task * job.per_node // tasks))
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
    # The user's own words, quoted as sbatch wants them.
    return lines + [directive(one.removeprefix("#SBATCH").strip()) for one in site.directives]


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


def _software(job: SlurmJob) -> list[str]:
    return [*job.site.preparation(), "export PYTHONUNBUFFERED=1  # the log grows with every line printed"]


def _start(job: SlurmJob) -> list[str]:
    flags = list(_srun_flags(job))
    samestep = [*job.site.within(gpus=job.gpus_per_node > 0), *job.site.python(job.python), "-m", "samestep"]
    work = job.work
    if job.warning_s is not None:
        work = work.resumable(f'runs/{quoted([job.work.name])[0]}-"$SLURM_JOB_ID"')
    words = work.words(job.workers if job.launch == "node" and job.per_node > 1 else None)
    return [*explained(flags), command(["srun", *(flag for flag, _ in flags)], [*samestep, *words])]


def _srun_flags(job: SlurmJob) -> list[tuple[str, str]]:
    flags = []
    if job.site.cpus_per_task is not None:
        why = "srun does not take it from the job (Slurm 22.05 and later)"
        flags.append(('--cpus-per-task="$SLURM_CPUS_PER_TASK"', why))
    if job.warning_s is None:
        flags.append(("--kill-on-bad-exit=1", "one worker that fails ends the others"))
    if job.site.container and job.site.container_runtime == "pyxis":
        flags.append(("--container-image=" + quoted([job.site.container])[0], "the workers' container"))
        flags.append(('--container-mounts="$PWD"', "with this folder in it,"))
        flags.append(('--container-workdir="$PWD"', "and started there"))
    return flags


def _end(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        "code=$?",
        comment(
            f"{PUT_OFF}: stopped after a checkpoint; {WARNED}: ended by the warning itself. Both can go on."
        ),
        f'if [ "$code" -eq {PUT_OFF} ] || [ "$code" -eq {WARNED} ]; then',
        '    echo "samestep: the job goes back to the queue" >&2',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
