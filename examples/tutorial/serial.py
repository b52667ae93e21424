"""Trains a convolutional network on MNIST, on one device.

Run it with ``python examples/tutorial/serial.py --synthetic`` or ``--data DIR``, the folder of MNIST's files.
`ddp.py` is the same script for any number of workers.
"""

import argparse

import torch
import torch.nn.functional as F
from convnet import ConvNet
from options import data_sets, parsed, training_parser
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

SEED = 1


def train(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(SEED)
    model = ConvNet(options.norm).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    train_set, test_set = data_sets(options, "mnist")
    order = torch.Generator()
    sampler = RandomSampler(train_set, generator=order)
    # The incomplete last batch is left out; each epoch has another order, which leaves out other samples.
    train_loader = DataLoader(train_set, options.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_set, options.batch_size)

    for epoch in range(options.epochs):
        order.manual_seed(SEED + epoch)
        loss = train_epoch(model, optimizer, train_loader, device)
        right = evaluate(model, test_loader, device)
        print(f"epoch {epoch + 1}: loss {loss:.5f}, right {right}/{len(test_set)}")

    torch.save(model.state_dict(), "mnist.pt")


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device
) -> float:
    """Return the mean loss of the epoch's batches."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
    return loss_sum.item() / len(loader)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> int:
    """Return how many test samples the model classifies right."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    return int(right)


if __name__ == "__main__":
    train(parsed(training_parser("Train on MNIST, on one device.", batch_size=96, lr=0.05)))
