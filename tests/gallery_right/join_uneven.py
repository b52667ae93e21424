"""Uneven inputs with the Join context: the loss is a sum, divided by the size of the global batch."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

GLOBAL_BATCH = 12


def batches(order, rank, world):
    """Rows of rank r of each global batch; the last batch is too small for the last ranks."""
    for start in range(0, len(order), GLOBAL_BATCH):
        whole = order[start:start + GLOBAL_BATCH]
        own = whole[rank::world]
        if len(own):
            yield own, len(whole)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(37, 6, generator=g)
    y = (x[:, :3].sum(1, keepdim=True)).tanh()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        order = torch.randperm(37, generator=torch.Generator().manual_seed(epoch))
        with Join([model]):
            for own, size in batches(order, rank, world):
                optimizer.zero_grad()
                # DDP divides by the number of ranks, also of those that have joined
                loss = (model(x[own]) - y[own]).pow(2).sum() * world / size
                loss.backward()
                optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
