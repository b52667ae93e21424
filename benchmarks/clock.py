"""What does the step clock cost a step.

Run: ``python benchmarks/clock.py [--rounds 60] [--batch-size 2 16]``. Two ranks of one thread train the
tutorials' ConvNet over Gloo, as a script with DistributedDataParallel. In each round they take some steps
with the clock of ``samestep run --clock`` and some without, in the same processes, in an order that is drawn
anew. Prints the median step without the clock; what the thread that trains, and the whole process, compute
more in a step with it, as medians of the rounds' differences; and the median ratio of the time that passes,
which on a machine of few processors varies more than that by chance. What the clock does in a step is the
same for each batch size: small ones tell it best.
"""

import argparse
import contextlib
import os
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from memory import keep_memory
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from samestep.base.place import Place
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.step_clock import ScriptClock
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.training.networks import ConvNet

STEPS = 40
"""Steps of a turn."""
BEGINNING = 10
"""And before it: the clock makes its file and its thread."""


class Turn(NamedTuple):
    """Seconds of a step, over a turn."""

    passed: float
    computing: float
    """In the thread that trains."""
    process: float
    """In all threads."""


def batches(batch: int) -> Iterator[list[torch.Tensor]]:
    data = TensorDataset(torch.randn(8 * batch, 1, 28, 28), torch.randint(0, 10, (8 * batch,)))
    while True:
        yield from DataLoader(data, batch_size=batch)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[list[torch.Tensor]], steps: int
) -> Turn:
    before = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(steps):
        images, labels = next(loader)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    after = time.perf_counter(), time.thread_time(), time.process_time()
    return Turn(*((end - begin) / steps for begin, end in zip(before, after, strict=True)))


def measure(
    world: ProcessGroupWorld, model: nn.Module, loader: Iterator[list[torch.Tensor]], rounds: int
) -> list[tuple[Turn, Turn]]:
    """Return of each round the turn without the clock, and the one with it."""
    order, folder = random.Random(7), Path(tempfile.mkdtemp(prefix="clock-"))
    found = []
    # What follows gradients puts itself in place, below the clock.
    train(model, torch.optim.SGD(model.parameters(), lr=1e-3), loader, BEGINNING)
    for number in range(-1, rounds):
        turns: dict[bool, Turn] = {}
        for has_clock in order.sample([False, True], 2):
            with contextlib.ExitStack() as stack:
                if has_clock:
                    clocking = ClockOptions(folder=folder / str(number))
                    file = ClockFile(clocking, world.place, "native")
                    clock = ScriptClock(file, clocking, stop=lambda: None)
                    stack.callback(clock.end, "end")
                    stack.enter_context(clock.attached())
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
                turn = partial(train, model, optimizer, loader)
                turn(BEGINNING)
                world.barrier()
                turns[has_clock] = turn(STEPS)
        if number >= 0:
            found.append((turns[False], turns[True]))
    shutil.rmtree(folder)
    return found


def rank_main(rank: int, size: int, port: int, rounds: int, sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    world = ProcessGroupWorld(Place(rank=rank, size=size, local_size=size), torch.device("cpu"))
    for batch in sizes:
        model = DistributedDataParallel(ConvNet())
        tell(world, f"DDP, {batch} per rank", measure(world, model, batches(batch), rounds))
    # The process goes before the group does: a DDP model that outlives its group can hang Gloo.
    world.barrier()


def tell(world: ProcessGroupWorld, name: str, found: list[tuple[Turn, Turn]]) -> None:
    step = statistics.median(without.passed for without, _ in found)
    thread = statistics.quantiles((clocked.computing - without.computing for without, clocked in found), n=4)
    process = statistics.median(clocked.process - without.process for without, clocked in found)
    ratio = statistics.quantiles((clocked.passed / without.passed for without, clocked in found), n=4)
    world.print(
        f"{name}: a step takes {step * 1e3:.2f} ms; with the clock its thread computes "
        f"{thread[1] * 1e3:.3f} ms more (quartiles {thread[0] * 1e3:.3f}, {thread[2] * 1e3:.3f}), "
        f"{thread[1] / step:.1%} of it, the process {process * 1e3:.3f} ms; it takes {ratio[1]:.4f} times as "
        f"long ({ratio[0]:.3f}, {ratio[2]:.3f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--batch-size", type=int, nargs="*", default=[2, 16], help="per rank")
    options = parser.parse_args()
    keep_memory()
    os.environ["PYTHONHASHSEED"] = "0"  # of the ranks, whose sets must have one order
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    spawn(rank_main, args=(2, free, options.rounds, options.batch_size), nprocs=2)
