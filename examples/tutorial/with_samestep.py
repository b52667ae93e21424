"""`serial.py` on any number of workers with samestep: the changed lines, each fenced.

Run it with ``samestep run -n 2 examples/tutorial/with_samestep.py --synthetic``; it prints the same losses on
any number of workers. The unchanged `serial.py` runs
on several workers too: ``samestep run -n 2 examples/tutorial/serial.py --synthetic``.
"""

import argparse

import torch
import torch.nn.functional as F
from convnet import ConvNet
from options import data_sets, parsed, training_parser
from torch import nn
from torch.utils.data import DataLoader

import samestep

SEED = 1


def train(options: argparse.Namespace, world: samestep.World) -> None:
    # >>> step 4: the device
    device = world.device
    # <<<

    torch.manual_seed(SEED)
    model = ConvNet(options.norm).to(device)
    # >>> step 2: the model
    samestep.replicate(model)
    # <<<
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    train_set, test_set = data_sets(options, "mnist")
    # >>> step 3: the data
    # The order of an epoch is samestep's: the same on any number of workers, but not that of torch's sampler.
    train_loader = samestep.shard(DataLoader(train_set, options.batch_size, shuffle=True, drop_last=True))
    test_loader = samestep.shard(DataLoader(test_set, options.batch_size))
    # <<<

    for epoch in range(options.epochs):
        loss = train_epoch(model, optimizer, train_loader, world)
        right = evaluate(model, test_loader, world)
        # >>> step 4: sums over all ranks, printed once
        world.print(f"epoch {epoch + 1}: loss {loss:.5f}, right {right}/{len(test_set)}")
        # <<<

    # >>> step 5: the checkpoint
    world.on_main(lambda: torch.save(model.state_dict(), "mnist.pt"))
    # <<<


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, world: samestep.World
) -> float:
    """Return the mean loss of the epoch's global batches."""
    model.train()
    loss_sum = torch.zeros((), device=world.device)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(world.device)), labels.to(world.device))
        optimizer.zero_grad()
        # >>> step 3: the data
        (loss * loader.loss_weight).backward()  # shards of a batch can be uneven
        # <<<
        optimizer.step()
        loss_sum += loss.detach() * loader.loss_weight
    # >>> step 4: sums over all ranks, printed once
    return world.sum(loss_sum.item()) / len(loader) / world.size
    # <<<


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, world: samestep.World) -> int:
    """Return how many test samples the model classifies right."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=world.device)
    for images, labels in loader:
        right += (model(images.to(world.device)).argmax(1) == labels.to(world.device)).sum()
    # >>> step 4: sums over all ranks, printed once
    return int(world.sum(int(right)))
    # <<<


if __name__ == "__main__":
    arguments = parsed(training_parser("Train on MNIST.", batch_size=96, lr=0.05))
    # >>> step 1: the process group
    with samestep.join() as joined:
        train(arguments, joined)
    # <<<
