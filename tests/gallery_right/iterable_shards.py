"""An IterableDataset that deals a stream to ranks and loader workers."""
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Samples in a fixed order; of each global batch, rank r yields its rows."""

    def __init__(self, count, per_rank, rank, world):
        self.count, self.per_rank, self.rank, self.world = count, per_rank, rank, world

    def samples(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(self.count):
            x = torch.randn(7, generator=g)
            yield x, x.abs().sum()

    def __iter__(self):
        whole = self.per_rank * self.world
        first = self.rank * self.per_rank
        stream = self.samples()
        while batch := list(islice(stream, whole)):
            yield from batch[first:first + self.per_rank]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(Stream(360, 24 // world, rank, world), batch_size=24 // world, num_workers=1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 1)), find_unused_parameters=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    running = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        values = [torch.zeros_like(loss) for _ in range(world)]
        dist.all_gather(values, loss.detach())
        running = 0.9 * running + 0.1 * torch.stack(values).mean().item()
        if rank == 0 and step % 5 == 4:
            print(f"{step + 1} batches, running loss {running:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
