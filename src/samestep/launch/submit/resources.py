"""Describes the resources of a Slurm job, and writes the parts that the scripts of all jobs share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.units import MOST_WORKERS, counted
from samestep.launch.submit.quoting import comment, directive, quoted
from samestep.launch.submit.site_defaults import SlurmSite

Launch: TypeAlias = Literal["tasks", "node"]
LAUNCHES: tuple[Launch, ...] = ("tasks", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """The resources of one job.

    Args:
        name: of the job.
        nodes: number of nodes.
        per_node: workers on each node.
        gpus_per_node: GPUs of each node; 0 for none.
        site: further requests, and the software of the job.
        launch: whether Slurm starts each worker (``tasks``), or samestep does on each node (``node``).
        output: the log, with Slurm's ``%j`` for the number of the job.
        python: the interpreter that submits.
    """

    name: str
    nodes: int
    per_node: int
    gpus_per_node: int = 0
    site: SlurmSite
    launch: Launch = "tasks"
    output: str
    python: str

    def __post_init__(self) -> None:
        if self.launch not in LAUNCHES:
            raise UsageError(f"--launch {self.launch!r} is not one of {', '.join(LAUNCHES)}.")
        for flag, value, least in (
            ("--nodes", self.nodes, 1),
            ("--nproc-per-node", self.per_node, 1),
            ("--gpus-per-node", self.gpus_per_node, 0),
        ):
            if value < least:
                raise UsageError(f"{flag} is {value}; give at least {least}.")
            if value > MOST_WORKERS:
                raise UsageError(f"{flag} is {value}; give at most {MOST_WORKERS:,}.")
        if 0 < self.gpus_per_node < self.per_node:
            raise UsageError(
                f"{self.per_node} workers on each node need a GPU each, but --gpus-per-node is "
                f"{self.gpus_per_node}; ask for more GPUs or fewer workers."
            )

    @property
    def workers(self) -> int:
        """Number of workers on all nodes."""
        return self.nodes * self.per_node


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

    Args:
        asked: the resources of the job.
        ends_together: whether a failed worker ends the others.
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
