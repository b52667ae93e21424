"""The Join context with gradient accumulation; after training, rank 0 shows outputs without `eval()`."""
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

GLOBAL_BATCH = 12


def batches(order, rank, world):
    """Rows of rank r of each global batch; the last batch is too small for the last ranks."""
    share = GLOBAL_BATCH // world
    for start in range(0, len(order), GLOBAL_BATCH):
        whole = order[start:start + GLOBAL_BATCH]
        own = whole[rank * share:(rank + 1) * share]
        if len(own):
            yield own, len(whole)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(39, 6, generator=g)
    y = (x[:, :3].sum(1, keepdim=True)).tanh()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        order = torch.randperm(39, generator=torch.Generator().manual_seed(epoch))
        with Join([model]):
            for own, size in batches(order, rank, world):
                optimizer.zero_grad()
                parts = own.split(2)
                for i, part in enumerate(parts):
                    with nullcontext() if i + 1 == len(parts) else model.no_sync():
                        loss = (model(x[part]) - y[part]).pow(2).sum() * world / size
                        loss.backward()
                optimizer.step()
    if rank == 0:
        outputs = model.module(x[:4])
        print(f"{outputs.detach().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
