"""Joins the ranks that a check starts, and runs one task: ``rank_script.py TASK DEVICE BACKEND FILE``.

Rank 0 writes the figures of the task. A task raises on the rank where a comparison fails.
"""

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import samestep
from gpu_checks.context import Figures, require
from samestep.ranks.world.protocol import SoloWorld

_BATCH, _CLASSES = 16, 4
SYNCHRONIZERS = ("bucketed", "reference", "ddp")
ON_CPUS = ("flat",)
"""Synchronizers of ranks that compute on CPUs."""


def network(*, batch_norm: bool) -> nn.Sequential:
    """Return the same model on every rank."""
    torch.manual_seed(5)
    norm: list[nn.Module] = [nn.BatchNorm2d(8)] if batch_norm else []
    # The gradient of a bias before batch norm is 0 but for rounding, which cannot be compared.
    first = nn.Conv2d(3, 8, 3, padding=1, bias=not batch_norm)
    return nn.Sequential(first, *norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, _CLASSES))


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the global batch, the same on every rank."""
    generator = torch.Generator().manual_seed(9)
    images = torch.randn(_BATCH, 3, 8, 8, generator=generator)
    labels = torch.randint(0, _CLASSES, (_BATCH,), generator=generator)
    return images.to(device), labels.to(device)


def own_rows(world: samestep.World) -> slice:
    """Return the rows of the global batch that this rank computes."""
    each = _BATCH // world.place.size
    return slice(world.place.rank * each, (world.place.rank + 1) * each)


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32, so that results can be compared to many digits."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the gradients of one backward."""
    model.zero_grad()
    cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def difference(found: list[Tensor], expected: list[Tensor], tolerance: float, name: str) -> float:
    """Return the largest difference relative to the largest value; raise if it exceeds the tolerance."""
    require(len(found) == len(expected) > 0, f"{name}: {len(found)} tensors, expected {len(expected)}")
    pairs = zip(found, expected, strict=True)
    largest = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
    require(
        largest <= tolerance, f"{name}: relative difference {largest:.3g}, at most {tolerance:g} expected"
    )
    return largest


def synchronizers(world: samestep.World) -> Figures:
    """Compare the gradients of each synchronizer with those of one process and of plain DDP."""
    model = network(batch_norm=False).to(world.device)
    images, labels = batch(world.device)
    own = own_rows(world)
    expected = gradients(copy.deepcopy(model), images, labels)
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    by_ddp = gradients(wrapped, images[own], labels[own])
    figures = {"plain DDP": difference(by_ddp, expected, 1e-4, "DDP against one process")}
    for name in (*SYNCHRONIZERS, *(ON_CPUS if world.device.type == "cpu" else ())):
        replica = copy.deepcopy(model)
        with samestep.replicate(replica, world, sync=name):
            found = gradients(replica, images[own], labels[own])
        figures[name] = difference(found, expected, 1e-4, f"{name} against one process")
        difference(found, by_ddp, 1e-4, f"{name} against DDP")
    return figures


def batch_norm(world: samestep.World) -> Figures:
    """Compare gradients and running statistics of global batch norm with one process and SyncBatchNorm."""
    model = network(batch_norm=True).to(world.device)
    images, labels = batch(world.device)
    own = own_rows(world)
    alone, replica, synced = (copy.deepcopy(model) for _ in range(3))
    expected = gradients(alone, images, labels)
    with samestep.replicate(replica, world, batch_norm="global"):
        found = gradients(replica, images[own], labels[own])
    figures = {
        "gradients": difference(found, expected, 1e-3, "gradients against one process"),
        "statistics": difference(_statistics(replica), _statistics(alone), 1e-4, "running statistics"),
    }
    if world.device.type != "cpu":  # torch's SyncBatchNorm needs an accelerator
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(synced)  # type: ignore[no-untyped-call]
        by_torch = gradients(DistributedDataParallel(converted), images[own], labels[own])
        figures["SyncBatchNorm"] = difference(found, by_torch, 1e-3, "gradients against SyncBatchNorm")
    return figures


def _statistics(model: nn.Module) -> list[Tensor]:
    return [one for name, one in model.named_buffers() if "running" in name]


def exact_ranks(world: samestep.World) -> Figures:
    """Train some steps with logical shards on all ranks and on one, and compare the bits."""
    steps = 3
    alone = SoloWorld(device=str(world.device))
    models = []
    for ranks in (alone, world):
        model = network(batch_norm=True).to(world.device)
        images, labels = batch(world.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        exact = samestep.Exact(model, shards=4, seed=1, world=ranks)
        for step in range(steps):
            for shard in exact.shards(step):
                own = shard.of(_BATCH)
                loss = cross_entropy(model(images[own]), labels[own], reduction="sum") / _BATCH
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        models.append(model)
    first, second = (list(model.state_dict().values()) for model in models)
    equal = sum(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    require(equal == len(first), f"{len(first) - equal} of {len(first)} tensors have other bits")
    return {"tensors": equal, "steps": steps}


def adopted(world: samestep.World) -> Figures:
    """Train with DDP in a process group of the script, for ``--sanitize``."""
    model = DistributedDataParallel(network(batch_norm=False).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = batch(world.device)
    own, steps = own_rows(world), 4
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(images[own]), labels[own]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {"steps": steps}


def hang(world: samestep.World) -> Figures:
    """Run a kernel on rank 1 that does not end in time, while rank 0 waits in an all-reduce."""
    value = torch.ones(4, device=world.device)
    dist.all_reduce(value)
    value.sum().item()
    if world.place.rank == 1:
        if world.device.type == "cuda":
            torch.cuda._sleep(1 << 40)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        else:
            time.sleep(600)
    dist.all_reduce(value)
    return {"sum": value.sum().item()}


TASKS: dict[str, Callable[[samestep.World], Figures]] = {
    "synchronizers": synchronizers,
    "batch_norm": batch_norm,
    "exact_ranks": exact_ranks,
    "adopted": adopted,
    "hang": hang,
}


def main(task: str, device: str, backend: str, file: str) -> None:
    """Join the other ranks and run the task; the task ``adopted`` gets the process group of this script."""
    if task == "adopted":
        if device.startswith("cuda"):
            torch.cuda.set_device(_local_rank() % torch.cuda.device_count())  # ranks may share one
        dist.init_process_group(backend)
    with samestep.join(device=device, backend=backend) as world, full_precision():
        figures = TASKS[task](world)
        if world.place.is_main:
            Path(file).write_text(json.dumps(dict(figures)))
    if task == "adopted":
        dist.destroy_process_group()


def _local_rank() -> int:
    from samestep.base import env
    from samestep.launchers.detect import detect

    return detect(env.snapshot()).place.local_rank


if __name__ == "__main__":
    main(*sys.argv[1:])
