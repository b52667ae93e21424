"""Two dimensions: tensor parallel within pairs of ranks, FSDP2 over the pairs."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def main():
    world = int(os.environ["WORLD_SIZE"])
    pair = 2 if world % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (world // pair, pair), mesh_dim_names=("dp", "tp"))
    data_rank, shards = mesh["dp"].get_local_rank(), world // pair
    torch.manual_seed(1)
    model = nn.Sequential(FeedForward(8), FeedForward(8))
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(2)
    for step in range(6):
        x = torch.randn(12, 8, generator=g)[data_rank::shards]
        loss = (model(x) - x.flip(1).sin()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
