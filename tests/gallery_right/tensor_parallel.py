"""Tensor parallel: the layers of an MLP are split over all ranks, which get the same batches."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(10, 12)
        self.up = nn.Linear(12, 24)
        self.down = nn.Linear(24, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.down(torch.relu(self.up(x))))


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(3)
    model = parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, foreach=False)
    torch.manual_seed(4)  # the same batches on all ranks of the group
    weight = torch.randn(10, 1)
    for step in range(12):
        x = torch.randn(16, 10)
        loss = (model(x) - torch.sin(x @ weight)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
