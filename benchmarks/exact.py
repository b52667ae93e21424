"""What equal bits at any number of workers cost: ``--exact 8`` against ordinary training, at equal workers.

Run: ``python benchmarks/exact.py [--seconds 270] [--only convnet]``. One worker, and two, of one thread each,
train the tutorials' ConvNet (global batches of 64) and ResNet-18 (32), in fp32 and bf16. All ways take turns
in the same two processes, a few steps each; while one worker trains, the other process sleeps. Prints the
median step of each way, and how many times as long exact training took in the same round: median and
quartiles. In the end the weights of exact training on one worker and on two are compared, bit for bit.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from samestep.base.place import Place
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.agreement import weights_sha256
from samestep.parallel.gradients.replicate import BatchNormMode, replicate
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import SoloWorld, World
from samestep.training.networks import build

SHARDS, RANKS = 8, 2
LEAST_ROUNDS, MOST_ROUNDS = 3, 60
TURN_S = 0.25
CASES = {  # model: images, global batch, share of the time in fp32 and in bf16
    "convnet": ((1, 28, 28), 64, {"fp32": 0.1, "bf16": 0.1}),
    "resnet18": ((3, 32, 32), 32, {"fp32": 0.3, "bf16": 0.5}),
}
Step = Callable[[], object]
Ways = dict[tuple[int, str], Step]
"""By workers and name; a worker that has no part in one does nothing."""


class Trainee:
    """One model with its optimizer and the global batch, the same in every process."""

    def __init__(self, name: str, precision: str) -> None:
        shape, batch, _ = CASES[name]
        torch.manual_seed(0)
        self.model = build(name, shape=shape, classes=10)
        self.images, self.labels = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        self._is_bf16 = precision == "bf16"

    def add_loss(self, own: slice) -> None:
        """Add the gradients of some of the samples."""
        products: AbstractContextManager[object] = nullcontext()
        if self._is_bf16:
            products = torch.autocast("cpu", dtype=torch.bfloat16)
        with products:
            scores = self.model(self.images[own])
        loss = functional.cross_entropy(scores.float(), self.labels[own], reduction="sum")
        (loss / len(self.labels)).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def ordinary(trainee: Trainee, world: World, batch_norm: BatchNormMode = "global") -> Step:
    count, (rank, size) = len(trainee.labels), (world.place.rank, world.place.size)
    replicas = replicate(trainee.model, world, batch_norm=batch_norm)
    own = slice(count * rank // size, count * (rank + 1) // size)

    def step() -> object:
        trainee.add_loss(own)  # the average over ranks is 1/N of the sum: as much work
        trainee.update()
        return replicas

    return step


def exactly(trainee: Trainee, world: World) -> Step:
    exact, number = Exact(trainee.model, shards=SHARDS, world=world), 0

    def step() -> None:
        nonlocal number
        for shard in exact.shards(number):
            trainee.add_loss(shard.of(len(trainee.labels)))
        trainee.update()
        number += 1

    return step


def ways(name: str, precision: str, world: World) -> tuple[Ways, dict[int, nn.Module]]:
    """Return the ways to train, and the models that are trained exactly, by number of workers."""
    trainees = {
        way: Trainee(name, precision) for way in ("one", "one exact", "two", "two local", "two exact")
    }
    made: Ways = {
        (2, "ordinary"): ordinary(trainees["two"], world),
        (2, "ordinary, batch norm over shares"): ordinary(trainees["two local"], world, batch_norm="local"),
        (2, "exact"): exactly(trainees["two exact"], world),
    }
    alone: Ways = {(1, "ordinary"): lambda: None, (1, "exact"): lambda: None}
    if world.place.is_main:
        alone = {
            (1, "ordinary"): ordinary(trainees["one"], SoloWorld()),
            (1, "exact"): exactly(trainees["one exact"], SoloWorld()),
        }
    return {**alone, **made}, {1: trainees["one exact"].model, 2: trainees["two exact"].model}


def measure(steps: Ways, world: World, seconds: float) -> dict[tuple[int, str], list[float]]:
    def turn(way: tuple[int, str], count: int) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(count):
            steps[way]()
        taken = torch.tensor([(time.perf_counter() - began) / count])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return taken.item()

    began = time.perf_counter()
    names = list(steps)
    for way in names:
        turn(way, 2)
    first = max(turn(way, 1) for way in names)
    count = max(1, min(20, round(TURN_S / first)))
    taken: dict[tuple[int, str], list[float]] = {way: [] for way in names}
    for number in range(MOST_ROUNDS):
        late = time.perf_counter() - began > seconds
        if world.broadcast_object(late and number >= LEAST_ROUNDS):
            break
        for way in names[number % len(names) :] + names[: number % len(names)]:
            taken[way].append(turn(way, count))
    return taken


def report(name: str, precision: str, taken: dict[tuple[int, str], list[float]], *, equal: bool) -> None:
    rounds = len(taken[1, "exact"])
    print(f"{name}, global batch {CASES[name][1]}, {precision}, {rounds} rounds")
    for (workers, way), seconds in taken.items():
        said = f"  {workers} worker{'s' * (workers > 1)}  {way:34s}{statistics.median(seconds) * 1e3:9.2f} ms"
        if way != "exact":
            pairs = zip(taken[workers, "exact"], seconds, strict=True)
            low, middle, high = statistics.quantiles([exact / plain for exact, plain in pairs], n=4)
            said += f"   exact takes {middle:.2f} times as long ({low:.2f} to {high:.2f})"
        print(said)
    print(f"  weights of exact training on 1 and on 2 workers: {'equal bits' if equal else 'NOT EQUAL'}")
    print(flush=True)


def rank_main(rank: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    place = Place(rank=rank, size=RANKS, local_rank=rank, local_size=RANKS)
    world = ProcessGroupWorld(place, torch.device("cpu"))
    for name in [options.only] if options.only else CASES:
        for precision, share in CASES[name][2].items():
            steps, models = ways(name, precision, world)
            taken = measure(steps, world, options.seconds * share)
            if rank == 0:
                one, two = (weights_sha256(models[workers].state_dict()) for workers in (1, 2))
                report(name, precision, taken, equal=one == two)
    world.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=270.0, help="for all of it, roughly")
    parser.add_argument("--only", choices=CASES, help="one model")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(rank_main, args=(port, options), nprocs=RANKS)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
