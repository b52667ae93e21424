"""`serial.py` on any number of workers: each change is fenced, and the losses stay the same.

Run it with ``torchrun --nproc-per-node 2 examples/tutorial/ddp.py --synthetic``, or with a script of `jobs`.
Without a launcher, ``python examples/tutorial/ddp.py --synthetic``, it is one worker.
"""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from convnet import ConvNet
from options import batch_share, data_sets, parsed, training_parser
from place import Place, check_address, connect, find_place
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

SEED = 1

TrainEpoch = Callable[[nn.Module, torch.optim.Optimizer, DataLoader, torch.device], float]


def main(options: argparse.Namespace, place: Place, epoch_of: TrainEpoch | None = None) -> None:
    # >>> step 1: the process group
    check_address(place)
    device = connect(place)
    # <<<
    try:
        train(options, place, device, epoch_of or train_epoch)
    finally:
        # >>> step 1: the process group
        dist.destroy_process_group()  # the model, which uses the group, is gone by now
        # <<<


def train(options: argparse.Namespace, place: Place, device: torch.device, epoch_of: TrainEpoch) -> None:
    torch.manual_seed(SEED)
    model = ConvNet(options.norm).to(device)
    # >>> step 2: the model
    if device.type == "cuda":  # statistics of the global batch; torch has no such layer for CPUs
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    # <<<
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    train_set, test_set = data_sets(options, "mnist")
    # >>> step 3: the data
    # --batch-size stays the size of the global batch: each worker loads its shard of every batch.
    batch_size = batch_share(options, place.world_size)
    sampler = DistributedSampler(train_set, place.world_size, place.rank, seed=SEED, drop_last=True)
    # Rank r tests the samples r, r + size, ...: all of them once, without the copies that a
    # DistributedSampler adds where the ranks do not divide the number of samples.
    test_part = Subset(test_set, range(place.rank, len(test_set), place.world_size))
    # <<<
    train_loader = DataLoader(train_set, batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_part, batch_size)

    for epoch in range(options.epochs):
        # >>> step 3: the data
        sampler.set_epoch(epoch)  # otherwise each epoch has the order of the first
        # <<<
        loss = epoch_of(model, optimizer, train_loader, device)
        right = evaluate(model, test_loader, device)
        if place.rank == 0:
            print(f"epoch {epoch + 1}: loss {loss:.5f}, right {right}/{len(test_set)}", flush=True)

    # >>> step 5: the checkpoint
    if place.rank == 0:  # one rank writes, without the prefix "module." that DDP adds
        torch.save(model.module.state_dict(), "mnist.pt.part")
        os.replace("mnist.pt.part", "mnist.pt")  # noqa: PTH105 - a reader finds the whole file or none
    dist.barrier()  # no rank reads the file before it is complete
    model.module.load_state_dict(torch.load("mnist.pt", map_location=device))
    # <<<


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device
) -> float:
    """Return the mean loss of the epoch's global batches."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    for images, labels in loader:
        # >>> step 4: the device of this rank, as everywhere else
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        # <<<
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients of all workers in here
        optimizer.step()
        loss_sum += loss.detach()
    # >>> step 4: sums over all ranks
    dist.all_reduce(loss_sum)
    return loss_sum.item() / len(loader) / dist.get_world_size()
    # <<<


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> int:
    """Return how many test samples the model classifies right."""
    # >>> step 4: sums over all ranks
    for buffer in model.buffers():  # after the last step, each rank has batch norm statistics of its own
        dist.broadcast(buffer, src=0)
    # <<<
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        right += (model.module(images.to(device)).argmax(1) == labels.to(device)).sum()
    # >>> step 4: sums over all ranks
    dist.all_reduce(right)
    # <<<
    return int(right)


if __name__ == "__main__":
    main(parsed(training_parser("Train on MNIST.", batch_size=96, lr=0.05)), find_place())
