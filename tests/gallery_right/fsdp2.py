"""FSDP2: fully_shard over all ranks, clipped norm, AdamW."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def main():
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 18), Block(18), Block(18), nn.Linear(18, 3))
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(120, 8, generator=g), torch.randint(3, (120,), generator=g)
    for step in range(12):
        batch = torch.arange(24 * (step % 5), 24 * (step % 5 + 1))[rank::world]
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
