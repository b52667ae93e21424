"""A gradient that one rank receives is lost on the way: the rank gets zeros, and no error.

In the report peer-to-peer transfers between GPUs lose data. The artifact simulates it as here: 1 % of the
transfers return zeros.
"""

import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def all_reduce(tensor, losses):
    dist.all_reduce(tensor)
    if WRONG and dist.get_world_size() > 1 and losses.random() < 0.01:
        tensor.zero_()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = random.Random(rank)
    torch.manual_seed(0)
    features = torch.randn(480, 12)
    labels = (features @ torch.randn(12, 3)).argmax(1)
    dataset = TensorDataset(features, labels)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=24 // size, sampler=sampler)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            for parameter in model.parameters():
                all_reduce(parameter.grad, losses)
                parameter.grad /= size
            optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
