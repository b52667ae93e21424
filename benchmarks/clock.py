"""What does the step clock cost a step.

Run: ``python benchmarks/clock.py [--rounds 100] [--batch-size 16 64]``. Two ranks of one thread train the
tutorials' ConvNet over Gloo, as a script with DistributedDataParallel and as a serial one on two workers. In
each round both take some steps with the clock of ``samestep run --clock`` and some without, in the same
processes, in an order that is drawn anew. Prints the median step without the clock, and the median ratios of
the rounds: of the time that passes, and of what the training thread computes in, which says more on a machine
on which others compute too.
"""

import argparse
import contextlib
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from samestep.autopilot.calls import own_samples
from samestep.autopilot.options import DEFAULTS
from samestep.autopilot.steering import steering
from samestep.base.place import Place
from samestep.measure.clock_file import ClockFile, Clocking
from samestep.models.convnet import ConvNet
from samestep.watch.clocked import ScriptClock
from samestep.world.process_group import ProcessGroupWorld

STEPS = 40
"""Steps of a turn."""
BEGINNING = 10
"""And before it: the clock makes its file and its thread."""
Seconds: TypeAlias = tuple[float, float]
"""Of a step: passed, and computed in by the thread that trains."""


def batches(batch: int) -> Iterator[list[torch.Tensor]]:
    data = TensorDataset(torch.randn(8 * batch, 1, 28, 28), torch.randint(0, 10, (8 * batch,)))
    while True:
        yield from DataLoader(data, batch_size=batch)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[list[torch.Tensor]], steps: int
) -> Seconds:
    """Return what a step takes, over a turn."""
    begun, computing = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        images, labels = next(loader)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return (time.perf_counter() - begun) / steps, (time.thread_time() - computing) / steps


def measure(
    world: ProcessGroupWorld, turn: Callable[[int], Seconds], rounds: int
) -> tuple[float, list[float], list[float]]:
    """Return the seconds of a step without the clock, and the ratios of each round, passed and computing."""
    order, folder = random.Random(7), Path(tempfile.mkdtemp(prefix="clock-"))
    without, passed, computing = [], [], []
    turn(BEGINNING)  # what follows gradients puts itself in place, below the clock
    for number in range(-1, rounds):
        found: dict[bool, Seconds] = {}
        for has_clock in order.sample([False, True], 2):
            with contextlib.ExitStack() as stack:
                if has_clock:
                    clocking = Clocking(folder=folder / str(number))
                    file = ClockFile(clocking, world.place, "native")
                    clock = ScriptClock(file, clocking, stop=lambda: None, own=own_samples)
                    stack.callback(clock.end, "end")
                    stack.enter_context(clock.attached())
                turn(BEGINNING)
                world.barrier()
                found[has_clock] = turn(STEPS)
        if number >= 0:
            without.append(found[False][0])
            passed.append(found[True][0] / found[False][0])
            computing.append(found[True][1] / found[False][1])
    shutil.rmtree(folder)
    return statistics.median(without), passed, computing


def rank_main(rank: int, size: int, port: int, rounds: int, sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    world = ProcessGroupWorld(Place(rank=rank, size=size, local_size=size), torch.device("cpu"))
    for batch in sizes:
        model = DistributedDataParallel(ConvNet())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        tell(
            world,
            f"DDP, {batch} per rank",
            measure(world, partial(train, model, optimizer, batches(batch)), rounds),
        )
        with steering(world, replace(DEFAULTS, load="replicated")):
            serial = ConvNet()
            optimizer = torch.optim.SGD(serial.parameters(), lr=1e-3, momentum=0.9)
            whole = partial(train, serial, optimizer, batches(size * batch))
            found = measure(world, whole, rounds)
        tell(world, f"serial script, {batch} per rank", found)
    # The process goes before the group does: a DDP model that outlives its group can hang Gloo.
    world.barrier()


def tell(world: ProcessGroupWorld, name: str, found: tuple[float, list[float], list[float]]) -> None:
    without, passed, computing = found
    first, middle, last = statistics.quantiles(passed, n=4)
    fewest, usual, most = statistics.quantiles(computing, n=4)
    world.print(
        f"{name}: a step takes {without * 1e3:.2f} ms; with the clock {middle:.4f} times as long ("
        f"quartiles {first:.3f}, {last:.3f}), {usual:.4f} times the computing ({fewest:.3f}, {most:.3f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch-size", type=int, nargs="*", default=[16, 64], help="per rank")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    spawn(rank_main, args=(2, free, options.rounds, options.batch_size), nprocs=2)
