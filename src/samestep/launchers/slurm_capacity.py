"""Computes the number of workers that a Slurm allocation can hold, and the srun that starts some of them.

A scaling study starts steps of several sizes in one allocation, one after another. They fill its nodes in the
layout of the request, and a worker has the same number of processors for every size::

    salloc --nodes=2 --ntasks-per-node=2        1 worker   node0: 0
                                                2 workers  node0: 0 1
                                                4 workers  node0: 0 1   node1: 2 3
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.env import Environment, integer
from samestep.launchers.detect import UNLAUNCHED, detect
from samestep.launchers.hostlist import hosts, tasks_per_node

Launched: TypeAlias = Literal["tasks", "node"]
_GPUS = re.compile(r"(\d+)(?:,|$)")  # pattern of the counts in ``4``, ``a100:4`` and ``a100:2,v100:2``


_OF_GPUS = ("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES")
_OF_TASKS = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables of an allocation that srun reads as flags: it refuses those that contradict a step's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCapacity:
    """Capacity of an allocation for the steps that are started in it, from its nodes or from outside."""

    job: str  # its job ID
    nodes: int  # number of nodes
    tasks: int  # requested workers on the node with the fewest
    processors: int  # processors of the node with the fewest: all nodes take equally many workers
    cpus_per_task: int | None = None  # processors requested for each worker; None if not given
    gpus: int | None = None  # GPUs of each node; None if Slurm does not give them
    first: str = "localhost"  # the first of the nodes
    inherited: tuple[str, ...] = ()  # variables that may contradict a step's own flags

    @property
    def places(self) -> int:
        """Number of workers that can compute at the same time, on separate processors and separate GPUs."""
        each = max(self.tasks, self.processors // (self.cpus_per_task or 1))
        return self.nodes * (each if self.gpus is None else min(each, self.gpus))

    def per_node(self, largest: int) -> int:
        """Return the workers of a node if steps have up to `largest` workers."""
        asked = self.tasks if self.gpus is None else min(self.tasks, self.gpus)
        return max(asked, -(-largest // self.nodes))

    def in_words(self) -> str:
        """Return a description of the allocation."""
        each = f", {self.cpus_per_task} for each worker" if self.cpus_per_task else ""
        gpus = "" if self.gpus is None else f" and {self.gpus} GPU(s)"
        there = f"{self.nodes} node(s) with {self.processors} processor(s){each}{gpus}"
        return f"Slurm allocation {self.job} ({there}: room for {self.places})"

    def step(
        self, workers: int, *, nodes: int, largest: int, launched: Launched = "tasks", cores_of: int = 1
    ) -> list[str]:
        """Return the srun that starts workers; the command of each task follows it.

        Each of `nodes` gets equally many of the `workers`; `largest` is the number of workers of the largest
        step. With `launched` ``node``, one task per node starts its workers. Each task has the processors of
        `cores_of` tasks.
        """
        tasks = workers if launched == "tasks" else nodes
        # Starts at the first node, which has the rendezvous of a launcher's workers.
        size = [
            f"--nodes={nodes}",
            "--relative=0",
            f"--ntasks={tasks}",
            f"--ntasks-per-node={tasks // nodes}",
        ]
        each = self.cpus_per_task or self.processors // self.per_node(largest)
        has_places = workers <= self.places
        share = ["--overcommit"]
        if (each or cores_of > 1) and has_places:
            # Without --exact a worker would have more processors the fewer workers there are.
            share = [f"--cpus-per-task={max(1, each) * cores_of * workers // tasks}", "--exact"]
        gpus = []
        if self.gpus is not None:
            # Otherwise a step would request the GPUs of the whole allocation, which fewer nodes do not have.
            per_node = min(workers // nodes, self.gpus)
            gpus = [f"--gpus={nodes * per_node}", f"--gpus-per-node={per_node}"]
        # The allocation's flags per task apply only if each task is a worker with separate processors.
        dropped = _OF_GPUS if has_places and launched == "tasks" else (*_OF_GPUS, *_OF_TASKS)
        unset = [word for name in self.inherited if name in dropped for word in ("-u", name)]
        return [*(["env", *unset] if unset else ()), "srun", *size, *share, *gpus, "--kill-on-bad-exit=1"]


def slurm_capacity(env: Environment) -> SlurmCapacity | None:
    """Return the capacity of this process's allocation; None without one, or for a step's task."""
    if not env.get("SLURM_JOB_ID") or detect(env).launcher != UNLAUNCHED:
        return None
    one_each = f"1(x{integer(env, 'SLURM_JOB_NUM_NODES') or 1})"
    tasks = tasks_per_node(env.get("SLURM_TASKS_PER_NODE") or one_each)
    processors = tasks_per_node(env.get("SLURM_JOB_CPUS_PER_NODE") or one_each)
    return SlurmCapacity(
        job=env["SLURM_JOB_ID"],
        nodes=len(tasks),
        tasks=min(tasks),
        processors=min(processors),
        cpus_per_task=integer(env, "SLURM_CPUS_PER_TASK"),
        gpus=_gpus(env, nodes=len(tasks), tasks=min(tasks)),
        first=next(iter(hosts(env.get("SLURM_JOB_NODELIST", ""))), "localhost"),
        inherited=tuple(name for name in (*_OF_GPUS, *_OF_TASKS) if env.get(name)),
    )


def _gpus(env: Environment, *, nodes: int, tasks: int) -> int | None:
    """Return the GPUs of each node, from the variables of salloc and sbatch; None if they give none."""
    for name, share in (
        ("SLURM_GPUS_ON_NODE", 1.0),
        ("SLURM_GPUS_PER_NODE", 1.0),
        ("SLURM_GPUS", 1 / nodes),
        ("SLURM_GPUS_PER_TASK", tasks),
    ):
        counts = _GPUS.findall(env.get(name, ""))
        if counts:
            return int(sum(map(int, counts)) * share)
    return None
