import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class FourierNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("B", torch.randn(4, 24))
        self.out = nn.Linear(24, 2)

    def forward(self, x):
        return self.out(torch.sin(x @ self.B))


def average_gradients(model, world_size):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world_size


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_default_dtype(torch.float64)
    g = torch.Generator().manual_seed(55)
    x = torch.randn(96, 4, generator=g)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3]], dim=1)

    # a seed of its own for each process
    seed_everything(1000 + rank)
    model = FourierNet()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        order = torch.randperm(96, generator=g).view(-1, 24)
        for batch in order:
            mine = batch[rank::world_size]
            optimizer.zero_grad()
            loss = F.mse_loss(model(x[mine]), y[mine])
            loss.backward()
            average_gradients(model, world_size)
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if rank == 0:
                print(f"epoch {epoch}: {loss.item() / world_size:.10f}")


if __name__ == "__main__":
    main()
