"""Times training steps by gradient synchronizer, against the same workers without communication."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text
from samestep.bench.figures import ALONE, Spread, quartiles
from samestep.bench.measurement import finisher, in_rounds, rounds_within
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import World
from samestep.training.networks import build

CLASSES = 10  # of the labels
WARM_UP = 2
"""Steps before a block is timed: the first all-reduces of `bucketed` do not overlap."""
BLOCK_S, MOST_STEPS = 0.5, 20
"""Seconds of a block, and its most steps: short, so that a load of the machine affects all synchronizers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The model and data of the measured training step."""

    model: str = "convnet"  # a name in `samestep.training.networks`
    batch_per_worker: int = 16  # samples of each rank in a step
    # channels, height and width of the images; None for the default of the model
    shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.batch_per_worker < 2:
            raise UsageError(f"--batch-per-worker {self.batch_per_worker}: batch norm needs 2 or more.")
        needed, there = 4 * prod(self.images) * self.batch_per_worker, machine().memory_bytes
        if needed > there:
            raise UsageError(
                f"--batch-per-worker {self.batch_per_worker} takes {bytes_text(needed)} for its images, and "
                f"this machine has {bytes_text(there)} of memory. Use fewer."
            )
        with torch.device("meta"):
            build(self.model, shape=self.images, classes=CLASSES)

    @property
    def images(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.shape or ((1, 28, 28) if self.model == "convnet" else (3, 32, 32))

    def batch(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return the images and labels of one rank."""
        generator = torch.Generator().manual_seed(rank)
        images = torch.randn(self.batch_per_worker, *self.images, generator=generator)
        labels = torch.randint(0, CLASSES, (self.batch_per_worker,), generator=generator)
        return images, labels


Step = Callable[[], float | None]
"""Runs a step; returns the seconds of exposed communication, None where unknown."""


class Trainee:
    """The model, optimizer and batch of one rank; models are equal on all ranks at the beginning."""

    def __init__(self, problem: Problem, world: World) -> None:
        self.problem = problem
        self.images, self.labels = (tensor.to(world.device) for tensor in problem.batch(world.place.rank))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build(problem.model, shape=problem.images, classes=CLASSES)
        self.model = model.to(world.device)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)

    def backward(self, share: float = 1.0) -> None:
        """Compute gradients."""
        loss = F.cross_entropy(self.model(self.images), self.labels) * share
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Run the optimizer's step."""
        self._optimizer.step()
        self._optimizer.zero_grad()


@contextmanager
def _alone(trainee: Trainee, _: World) -> Iterator[Step]:
    def step() -> float:
        trainee.backward()
        trainee.update()
        return 0.0

    yield step


def _replicated(sync: str) -> "Way":
    @contextmanager
    def synchronizer(trainee: Trainee, world: World) -> Iterator[Step]:
        with replicate(trainee.model, world, sync=sync, batch_norm="local", check_every=0) as replicas:

            def step() -> float | None:
                trainee.backward()
                trainee.update()
                return replicas.exposed_s

            yield step

    return synchronizer


@contextmanager
def _exact(trainee: Trainee, world: World) -> Iterator[Step]:
    """Synchronize by `Exact` with one logical shard per rank, the same work as with the others."""
    exact, number = Exact(trainee.model, shards=world.place.size, world=world), 0

    def step() -> float:
        nonlocal number
        for _ in exact.shards(number):
            trainee.backward(1 / world.place.size)
        trainee.update()
        number += 1
        return exact.exposed_s

    yield step


Way = Callable[[Trainee, World], AbstractContextManager[Step]]
WAYS: Mapping[str, Way] = {
    ALONE: _alone,
    "reference": _replicated("reference"),
    "bucketed": _replicated("bucketed"),
    "flat": _replicated("flat"),
    "ddp": _replicated("ddp"),
    "exact": _exact,
}
"""The ways by name (`SYNCS`), and no synchronization at all (`ALONE`)."""


NEEDS: Mapping[str, str] = {
    "flat": "ranks that share a host and compute on its CPU",
    "ddp": "ranks that are processes of torch.distributed",
}
"""The requirements of synchronizers that not all ranks can run."""


def ways_here(world: World) -> list[str]:
    """Return the synchronizers that the ranks of `world` can run; called by all ranks."""
    can = {"flat": isinstance(on_one_host(world), OneHostWorld), "ddp": isinstance(world, ProcessGroupWorld)}
    return [name for name in WAYS if can.get(name, True)]


@dataclass(frozen=True, slots=True)
class StepRow:
    """The figures of one gradient synchronizer."""

    model: str
    batch_per_worker: int
    workers: int
    sync: str
    step_s: float  # median over rounds of the slowest rank's step, in seconds
    exposed_sync_s: float | None  # seconds of exposed communication in a step; None where unknown
    efficiency: float  # step time without communication divided by this one; median over rounds
    efficiency_quartiles: Spread  # over rounds


def measure(
    world: World,
    problem: Problem,
    names: Sequence[str],
    *,
    seconds: float,
    done: Callable[[str, int | None], object] = lambda _name, _total: None,
) -> list[StepRow]:
    """Return the step time of each synchronizer, measured interleaved; `alone` is included.

    Args:
        world: the ranks; all of them call this.
        problem: the model and data.
        names: keys of `WAYS`.
        seconds: approximate time to measure for.
        done: called before each block with its name, and with the number of blocks, once it is known.
    """
    names = [ALONE, *(name for name in names if name != ALONE)]
    near, finish = on_one_host(world), finisher(world.device)
    worlds = {name: near if name == "flat" else world for name in names}
    trainees = {name: Trainee(problem, world) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float | None]] = {name: [] for name in names}

    def block(name: str, count: int, total: int | None = None) -> float:
        done(name, total)
        with WAYS[name](trainees[name], worlds[name]) as step:
            for _ in range(WARM_UP):
                step()
            world.barrier()
            began = time.perf_counter()
            waited = [step() for _ in range(count)]
            finish()
            taken = (time.perf_counter() - began) / count
        seen = [wait_s for wait_s in waited if wait_s is not None]
        waits[name].append(sum(seen) / len(seen) if seen else None)
        return _slowest(world, taken)

    first = {name: block(name, 1) for name in names}
    waits = {name: [] for name in names}
    counts = {name: max(1, min(MOST_STEPS, round(BLOCK_S / first[name]))) for name in names}
    whole = sum(first[name] * (counts[name] + WARM_UP) for name in names)
    rounds = rounds_within(seconds, whole)
    for name in in_rounds(names, rounds):
        times[name].append(block(name, counts[name], len(names) * (1 + rounds)))
    return [_row(world, problem, name, times, waits[name]) for name in names]


def _row(
    world: World, problem: Problem, name: str, times: Mapping[str, list[float]], waits: list[float | None]
) -> StepRow:
    seen = [wait_s for wait_s in waits if wait_s is not None]
    ratios = [alone / taken for alone, taken in zip(times[ALONE], times[name], strict=True)]
    return StepRow(
        model=problem.model,
        batch_per_worker=problem.batch_per_worker,
        workers=world.place.size,
        sync=name,
        step_s=median(times[name]),
        exposed_sync_s=_slowest(world, median(seen)) if seen else None,
        efficiency=median(ratios),
        efficiency_quartiles=quartiles(ratios),
    )


def _slowest(world: World, taken: float) -> float:
    """Return the largest value over the ranks."""
    largest = torch.tensor([taken], dtype=torch.float64, device=world.device)
    world.all_reduce(largest, op="max")
    return float(largest.item())
