"""The trainer does not set the epoch of a sampler inside of a batch sampler: all epochs have the same order."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class LengthBatches:
    """Batches of a sampler's indices, as a user writes it to group samples"""

    def __init__(self, sampler, batch_size):
        self.inner, self.batch_size = sampler, batch_size

    def __len__(self):
        return len(self.inner) // self.batch_size

    def __iter__(self):
        indices = list(self.inner)
        for i in range(len(self)):
            yield indices[i * self.batch_size : (i + 1) * self.batch_size]


def set_epoch(loader, epoch):
    samplers = [loader.sampler] if WRONG else [loader.sampler, getattr(loader.batch_sampler, "inner", None)]
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(144, 6)
    data = TensorDataset(x, x.square().sum(dim=1, keepdim=True) / 6)
    batches = LengthBatches(DistributedSampler(data, seed=0), 24 // size)
    loader = DataLoader(data, batch_sampler=batches)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        set_epoch(loader, epoch)
        for inputs, targets in loader:
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
