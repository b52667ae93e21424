"""Defines the gradient synchronizers that `bench step` compares, and the training they run in."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.base.machine.description import cpu_share, machine
from samestep.base.units import bytes_text
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.algorithms import ALL_REDUCE
from samestep.ranks.collectives.shared_memory_world import OneHostWorld, on_one_host
from samestep.ranks.world.process_group import ProcessGroupWorld, wait_for_main
from samestep.ranks.world.protocol import World
from samestep.studies.bench.request import ALONE, ONE_PROCESS
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


def _by(algorithm: str) -> "Way":
    """Return a synchronizer with one blocking all-reduce per gradient after backward, by `algorithm`."""

    @contextmanager
    def synchronizer(trainee: Trainee, world: World) -> Iterator[Step]:
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

    return synchronizer


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


@contextmanager
def _data_parallel(trainee: Trainee, world: World) -> Iterator[Step]:
    """Run DataParallel: one process uses the GPUs and samples of all ranks, and the other ranks wait.

    They wait on the CPU, since a collective would keep their GPUs busy, which this process uses.
    """
    model = trainee.model
    if world.place.is_main:
        model = nn.DataParallel(model, gpus_fed(world.device, world.place.size))
    yield _on_main(trainee, world, model)
    wait_for_main(world)


@contextmanager
def _one_process(trainee: Trainee, world: World) -> Iterator[Step]:
    """Run one process with the compute threads and samples of all ranks, and let the other ranks wait."""
    threads = torch.get_num_threads()
    if world.place.is_main:
        torch.set_num_threads(threads * world.place.size)
    try:
        yield _on_main(trainee, world, trainee.model)
        wait_for_main(world)
    finally:
        torch.set_num_threads(threads)


def _on_main(trainee: Trainee, world: World, model: nn.Module) -> Step:
    """Return a step on the samples of all ranks on rank 0, and one that does nothing on the others."""
    if not world.place.is_main:
        return lambda: None
    batches = [trainee.problem.batch(rank) for rank in range(world.place.size)]
    images, labels = (torch.cat(parts).to(world.device) for parts in zip(*batches, strict=True))

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        trainee.update()

    return step


def gpus_fed(
    device: torch.device, size: int, count: Callable[[], int] = torch.cuda.device_count
) -> list[int]:
    """Return the GPUs that one process uses in place of `size` ranks, its own first; empty if it cannot.

    `count` returns the number of GPUs that the process sees.
    """
    if device.type != "cuda" or not 2 <= size <= (seen := count()):
        return []
    own = device.index or 0
    return [own, *(other for other in range(seen) if other != own)][:size]


Way = Callable[[Trainee, World], AbstractContextManager[Step]]
WAYS: Mapping[str, Way] = {
    ALONE: _alone,
    "naive": _by("naive"),
    "ring": _by("ring"),
    "reference": _replicated("reference"),
    "bucketed": _replicated("bucketed"),
    "flat": _replicated("flat"),
    "ddp": _replicated("ddp"),
    "exact": _exact,
    "data_parallel": _data_parallel,
    ONE_PROCESS: _one_process,
}
"""The ways by name (`SYNCS`), and no synchronization at all (`ALONE`)."""


NEEDS: Mapping[str, str] = {
    "flat": "ranks that share a host and compute on its CPU",
    "ddp": "ranks that are processes of torch.distributed",
    "data_parallel": "two GPUs or more, one per worker, all visible to rank 0",
    ONE_PROCESS: "ranks that share a host, compute on its CPU, and have a core for each of their threads",
}
"""The requirements of synchronizers that not all ranks can run."""


def ways_here(world: World) -> list[str]:
    """Return the synchronizers that the ranks of `world` can run; called by all ranks."""
    size = world.place.size
    fed = world.on_main(lambda: gpus_fed(world.device, size))
    has_cores = world.on_main(lambda: cpu_share().usable >= torch.get_num_threads() * size)
    share_host = isinstance(on_one_host(world), OneHostWorld)
    can = {
        "flat": share_host,
        "ddp": isinstance(world, ProcessGroupWorld),
        "data_parallel": bool(fed),
        ONE_PROCESS: share_host and has_cores,
    }
    return [name for name in WAYS if can.get(name, True)]
