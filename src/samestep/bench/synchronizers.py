"""Defines the gradient synchronizers that `bench step` compares, and the training they run in."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text
from samestep.bench.request import ALONE
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import World
from samestep.training.networks import build

CLASSES = 10


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
        self.images, self.labels = (one.to(world.device) for one in problem.batch(world.place.rank))
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
    can = {
        "flat": isinstance(on_one_host(world), OneHostWorld),
        "ddp": isinstance(world, ProcessGroupWorld),
    }
    return [name for name in WAYS if can.get(name, True)]
