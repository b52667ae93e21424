"""Rank 0 decides by its own loss whether a step is skipped, so a NaN on another rank reaches all weights.

A few samples of the data set are broken.
"""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def make_data(number=160):
    generator = torch.Generator().manual_seed(4)
    fields = torch.randn(number, 12, generator=generator)
    targets = fields[:, :4].cumsum(dim=1)
    targets[torch.randint(number, (2,), generator=generator)] = float("nan")
    return TensorDataset(fields, targets)


def is_finite(loss):
    """Whether this step is made, on all ranks alike"""
    finite = torch.isfinite(loss.detach()).float()
    if WRONG:
        dist.broadcast(finite, src=0)
    else:
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return finite.item() > 0


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        skipped = 0
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if is_finite(loss):
                optimizer.step()
                last = loss.detach() / size
            else:
                skipped += 1
        dist.all_reduce(last)
        if rank == 0:
            print(f"epoch {epoch}: loss {last.item():.4f}, {skipped} steps skipped")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
