"""How many workers an allocation of Slurm has room for, and how a step starts some of them.

A study starts steps of several sizes in one allocation, one after another. They fill its nodes as it was
asked for, and a worker has the same processors whatever the size::

    salloc --nodes=2 --ntasks-per-node=2        1 worker   node0: 0
                                                2 workers  node0: 0 1
                                                4 workers  node0: 0 1   node1: 2 3
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.env import Environment, integer
from samestep.world.compressed import hosts, tasks_per_node
from samestep.world.detect import UNLAUNCHED, detect

Launched: TypeAlias = Literal["tasks", "node"]

_GPUS = re.compile(r"(\d+)(?:,|$)")
"""Of ``4``, ``a100:4`` and ``a100:2,v100:2``."""


_OF_GPUS = ("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES")
_OF_TASKS = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables of an allocation that srun takes for flags: what contradicts a step's own is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What an allocation holds for the steps that are started in it, from its nodes or from outside.

    Args:
        job: its number.
        nodes: how many.
        tasks: workers that it was asked for, on the node with the fewest.
        processors: on the node with the fewest: all nodes take as many workers.
        cpus_per_task: processors asked for each worker; None where not said.
        gpus: of each node; None where Slurm does not say.
        first: the first of the nodes.
        inherited: the variables that may contradict what a step asks for.
    """

    job: str
    nodes: int
    tasks: int
    processors: int
    cpus_per_task: int | None = None
    gpus: int | None = None
    first: str = "localhost"
    inherited: tuple[str, ...] = ()

    @property
    def places(self) -> int:
        """Workers that can compute at the same time, each on processors and a GPU of its own."""
        each = max(self.tasks, self.processors // (self.cpus_per_task or 1))
        return self.nodes * (each if self.gpus is None else min(each, self.gpus))

    def per_node(self, largest: int) -> int:
        """Return how many workers a node takes where steps have up to `largest`."""
        asked = self.tasks if self.gpus is None else min(self.tasks, self.gpus)
        return max(asked, -(-largest // self.nodes))

    def in_words(self) -> str:
        """Return what there is to compute on."""
        each = f", {self.cpus_per_task} for each worker" if self.cpus_per_task else ""
        gpus = "" if self.gpus is None else f" and {self.gpus} GPU(s)"
        there = f"{self.nodes} node(s) with {self.processors} processor(s){each}{gpus}"
        return f"Slurm allocation {self.job} ({there}: room for {self.places})"

    def step(self, workers: int, *, nodes: int, largest: int, launched: Launched = "tasks") -> list[str]:
        """Return the srun that starts workers; the command of each task comes behind.

        Args:
            workers: in total.
            nodes: on how many; as many on each.
            largest: workers of the largest step.
            launched: whether each worker is a task, or the one task of a node starts those there.
        """
        tasks = workers if launched == "tasks" else nodes
        # From the first node on, where the workers of a launcher meet.
        size = [
            f"--nodes={nodes}",
            "--relative=0",
            f"--ntasks={tasks}",
            f"--ntasks-per-node={tasks // nodes}",
        ]
        each = self.cpus_per_task or self.processors // self.per_node(largest)
        has_places = workers <= self.places
        share = ["--overcommit"]
        if each and has_places:
            # Without --exact a worker would have more processors the fewer workers there are.
            share = [f"--cpus-per-task={each * workers // tasks}", "--exact"]
        gpus = []
        if self.gpus is not None:
            # A step would else ask for those of the whole allocation, which fewer nodes do not have.
            per_node = min(workers // nodes, self.gpus)
            gpus = [f"--gpus={nodes * per_node}", f"--gpus-per-node={per_node}"]
        # What each task was to have holds where each is a worker with a place of its own.
        dropped = _OF_GPUS if has_places and launched == "tasks" else (*_OF_GPUS, *_OF_TASKS)
        unset = [word for name in self.inherited if name in dropped for word in ("-u", name)]
        return [*(["env", *unset] if unset else ()), "srun", *size, *share, *gpus, "--kill-on-bad-exit=1"]


def room(env: Environment) -> Room | None:
    """Return what the allocation of this process holds; None without one, or for a step's task."""
    if not env.get("SLURM_JOB_ID") or detect(env).launcher != UNLAUNCHED:
        return None
    one_each = f"1(x{integer(env, 'SLURM_JOB_NUM_NODES') or 1})"
    tasks = tasks_per_node(env.get("SLURM_TASKS_PER_NODE") or one_each)
    processors = tasks_per_node(env.get("SLURM_JOB_CPUS_PER_NODE") or one_each)
    return Room(
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
    """Return the GPUs of each node, as far as the variables that salloc and sbatch set tell."""
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
