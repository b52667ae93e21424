"""Whole training steps, by how their gradients are exchanged, against the same workers without exchange."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F

from samestep.base.errors import UsageError
from samestep.bench.rounds import turns
from samestep.collectives.algorithms import ALL_REDUCE
from samestep.collectives.one_host import OneHostWorld, on_one_host
from samestep.exact.shards import Exact
from samestep.models.registry import build
from samestep.replicas.replicate import replicate
from samestep.world.process_group import ProcessGroupWorld
from samestep.world.world import World

WARM_UP = 2
"""Steps before a turn is timed: the first exchange of `bucketed` sends nothing early."""
TURN_S, MOST_STEPS = 0.5, 20
LEAST_ROUNDS, MOST_ROUNDS = 3, 200
CLASSES = 10


@dataclass(frozen=True, slots=True)
class StepRow:
    """What was measured of one way to exchange gradients."""

    model: str
    batch_per_worker: int
    workers: int
    sync: str
    step_s: float
    """Median over rounds, of the slowest rank's."""
    exposed_sync_s: float | None
    """Seconds of it that backward waits for the exchange; None where that cannot be seen."""
    efficiency: float
    """Seconds of the same ranks' step without exchange over these: median over rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is trained.

    Args:
        model: a name that `samestep.models.registry` knows.
        batch_per_worker: samples of each rank's part of a step.
        shape: channels, height and width of the images; None for those that suit the model.
    """

    model: str = "convnet"
    batch_per_worker: int = 16
    shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.batch_per_worker < 2:
            raise UsageError(f"--batch-per-worker {self.batch_per_worker}: batch norm needs 2 or more.")
        with torch.device("meta"):
            build(self.model, shape=self.images, classes=CLASSES)

    @property
    def images(self) -> tuple[int, int, int]:
        """Shape of an image."""
        return self.shape or ((1, 28, 28) if self.model == "convnet" else (3, 32, 32))


Step = Callable[[], float | None]
"""Takes a step; returns the seconds that backward waited for the exchange, None where that is not seen."""


class Trainee:
    """One rank's network with its optimizer and batch, equal on all ranks at the beginning.

    Args:
        problem: what is trained.
        world: the ranks.
    """

    def __init__(self, problem: Problem, world: World) -> None:
        generator = torch.Generator().manual_seed(world.place.rank)
        images = torch.randn(problem.batch_per_worker, *problem.images, generator=generator)
        labels = torch.randint(0, CLASSES, (problem.batch_per_worker,), generator=generator)
        self.images, self.labels = images.to(world.device), labels.to(world.device)
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
        """Take the optimizer's step."""
        self._optimizer.step()
        self._optimizer.zero_grad()


@contextmanager
def _alone(trainee: Trainee, _: World) -> Iterator[Step]:
    def step() -> float:
        trainee.backward()
        trainee.update()
        return 0.0

    yield step


def _by(algorithm: str) -> "Way":
    """One blocking all-reduce for each gradient once backward is through: the textbook, by an algorithm."""

    @contextmanager
    def way(trainee: Trainee, world: World) -> Iterator[Step]:
        all_reduce = ALL_REDUCE[algorithm]

        def step() -> float:
            trainee.backward()
            began = time.perf_counter()
            for parameter in trainee.model.parameters():
                if parameter.grad is not None:
                    all_reduce(world, parameter.grad, "mean")
            waited = time.perf_counter() - began
            trainee.update()
            return waited

        yield step

    return way


def _replicated(sync: str) -> "Way":
    @contextmanager
    def way(trainee: Trainee, world: World) -> Iterator[Step]:
        with replicate(trainee.model, world, sync=sync, batch_norm="local", check_every=0) as replicas:

            def step() -> float | None:
                trainee.backward()
                trainee.update()
                return replicas.exposed_s

            yield step

    return way


@contextmanager
def _exact(trainee: Trainee, world: World) -> Iterator[Step]:
    """One logical shard for each rank, which is as much work as in the other ways."""
    exact, number = Exact(trainee.model, shards=world.place.size, world=world), 0

    def step() -> None:
        nonlocal number
        for _ in exact.shards(number):
            trainee.backward(1 / world.place.size)
        trainee.update()
        number += 1

    yield step


Way = Callable[[Trainee, World], AbstractContextManager[Step]]
ALONE = "alone"
WAYS: Mapping[str, Way] = {
    ALONE: _alone,
    "naive": _by("naive"),
    "ring": _by("ring"),
    "reference": _replicated("reference"),
    "bucketed": _replicated("bucketed"),
    "flat": _replicated("flat"),
    "ddp": _replicated("ddp"),
    "exact": _exact,
}
"""How gradients may be exchanged, by name (`SYNCS`); the first is not at all."""


def ways_here(world: World) -> list[str]:
    """Return those that the ranks of `world` can run; called by all."""
    can = {"flat": isinstance(on_one_host(world), OneHostWorld), "ddp": isinstance(world, ProcessGroupWorld)}
    return [name for name in WAYS if can.get(name, True)]


def measure(
    world: World,
    problem: Problem,
    names: Sequence[str],
    *,
    seconds: float,
    done: Callable[[str], object] = lambda _: None,
) -> list[StepRow]:
    """Return what a step takes in each of the ways, which take turns; `alone` is among them.

    Args:
        world: the ranks; all of them call this.
        problem: what is trained.
        names: keys of `WAYS`.
        seconds: to measure for, roughly.
        done: called before each turn with what it is.
    """
    names = [ALONE, *(name for name in names if name != ALONE)]
    near = on_one_host(world)
    worlds = {name: near if name in ("naive", "ring", "flat") else world for name in names}
    trainees = {name: Trainee(problem, world) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float | None]] = {name: [] for name in names}

    def turn(name: str, count: int) -> float:
        done(name)
        with WAYS[name](trainees[name], worlds[name]) as step:
            for _ in range(WARM_UP):
                step()
            world.barrier()
            began = time.perf_counter()
            waited = [step() for _ in range(count)]
            taken = (time.perf_counter() - began) / count
        seen = [one for one in waited if one is not None]
        waits[name].append(sum(seen) / len(seen) if seen else None)
        return _slowest(world, taken)

    first = {name: turn(name, 1) for name in names}
    waits = {name: [] for name in names}
    counts = {name: max(1, min(MOST_STEPS, round(TURN_S / first[name]))) for name in names}
    whole = sum(first[name] * (counts[name] + WARM_UP) for name in names)
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / whole)))
    for number in range(rounds):
        for name in turns(names, number):
            times[name].append(turn(name, counts[name]))
    return [_row(world, problem, name, times, waits[name]) for name in names]


def _row(
    world: World, problem: Problem, name: str, times: Mapping[str, list[float]], waits: list[float | None]
) -> StepRow:
    seen = [one for one in waits if one is not None]
    ratios = [alone / taken for alone, taken in zip(times[ALONE], times[name], strict=True)]
    return StepRow(
        model=problem.model,
        batch_per_worker=problem.batch_per_worker,
        workers=world.place.size,
        sync=name,
        step_s=median(times[name]),
        exposed_sync_s=_slowest(world, median(seen)) if seen else None,
        efficiency=median(ratios),
    )


def _slowest(world: World, taken: float) -> float:
    """Return the largest over the ranks."""
    largest = torch.tensor([taken], dtype=torch.float64, device=world.device)
    world.all_reduce(largest, op="max")
    return float(largest.item())
