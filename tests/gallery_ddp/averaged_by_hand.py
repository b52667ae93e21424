"""Data parallelism as in the "Writing Distributed Applications" course: partitions and averaged gradients."""
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class DataPartitioner:
    def __init__(self, length, parts, seed):
        self.indices = list(range(length))
        self.parts = parts
        self.random = random.Random(seed)

    def use(self, part):
        self.random.shuffle(self.indices)
        return self.indices[part::self.parts]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2 = nn.Conv2d(6, 8, kernel_size=3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.conv2(x)).flatten(1)
        return F.log_softmax(self.fc(x), dim=1)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1234 + rank)
    g = torch.Generator().manual_seed(5)
    labels = torch.arange(96) % 4
    images = torch.randn(4, 1, 8, 8, generator=g)[labels] + 0.5 * torch.randn(96, 1, 8, 8, generator=g)

    model = Net()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    partition = DataPartitioner(len(images), size, seed=1234)
    bsz = 24 // size
    for epoch in range(6):
        mine = partition.use(rank)
        epoch_loss = 0.0
        for start in range(0, len(mine), bsz):
            chosen = mine[start:start + bsz]
            optimizer.zero_grad()
            loss = F.nll_loss(model(images[chosen]), labels[chosen])
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        epoch_loss = torch.tensor(epoch_loss / 4)
        dist.all_reduce(epoch_loss)
        if rank == 0:
            print("Epoch {}: {:.10f}".format(epoch, epoch_loss.item() / size))


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    run(dist.get_rank(), dist.get_world_size())
