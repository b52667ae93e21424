"""How much does a synchronizer cost a training step, against torch's DDP.

Run: ``python benchmarks/sync_step.py [--rounds 200] [--ranks 2] [--only bucketed]``. Ranks of one thread each
train the tutorials' ConvNet over Gloo; all variants take turns, a few steps each, in the same processes, so
that a busy machine is busy for all of them. Prints the median step and its ratio to torch's DDP with its
defaults, which normalises each rank's share; so do the others but for the last.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from samestep.base.place import Place
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.training.networks import ConvNet

STEPS = 5
"""Steps of one variant's turn."""
Step = Callable[[], None]


def step_of(model: nn.Module, run: nn.Module, batch: int) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(run(images), labels).backward()
        optimizer.step()

    return step


def variants(world: ProcessGroupWorld, batch: int) -> dict[str, Step]:
    models = {name: ConvNet() for name in ("alone", "torch DDP", "bucketed", "reference", "ddp")}
    steps = {}
    for name, model in models.items():
        if name not in {"alone", "torch DDP"}:
            replicate(model, apart(world, name), sync=name, batch_norm="local")
        run = DistributedDataParallel(model) if name == "torch DDP" else model
        steps[name] = step_of(model, run, batch)
    model = ConvNet()
    replicate(model, apart(world, "global"), batch_norm="global")
    return {**steps, "bucketed, global batch norm": step_of(model, model, batch)}


def apart(world: ProcessGroupWorld, name: str) -> ProcessGroupWorld:
    """Return the same ranks as another job: of several models of one job only the first overlaps."""
    return ProcessGroupWorld(replace(world.place, launcher=name), world.device)


def rank_main(rank: int, size: int, port: int, rounds: int, only: str | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    world = ProcessGroupWorld(Place(rank=rank, size=size), torch.device("cpu"))
    for batch in (16, 64):
        steps = variants(world, batch)
        if only is not None:
            steps = {name: steps[name] for name in ("torch DDP", only)}
        seconds = measure(steps, world, rounds)
        if rank == 0:
            report(seconds, batch, size)
    # The process goes before the group does: a DDP model that outlives its group can hang Gloo.
    world.barrier()


def measure(steps: dict[str, Step], world: ProcessGroupWorld, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            world.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                steps[name]()
            if turn > 1:  # the first ones warm up
                seconds[name].append((time.perf_counter() - began) / STEPS)
    return seconds


def report(seconds: dict[str, list[float]], batch: int, size: int) -> None:
    base = seconds["torch DDP"]
    print(f"ConvNet, {size} ranks x 1 thread, batch {batch} per rank, {len(base)} turns of {STEPS} steps")
    for name, values in seconds.items():
        paired = statistics.median(value / other for value, other in zip(values, base, strict=True))
        ratio = statistics.median(values) / statistics.median(base)
        print(
            f"  {name:28s} {statistics.median(values) * 1e3:7.3f} ms   {ratio:5.3f} of torch DDP"
            f" (turn by turn {paired:5.3f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="one variant, beside torch DDP")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(rank_main, args=(options.ranks, port, options.rounds, options.only), nprocs=options.ranks)


if __name__ == "__main__":
    main()
