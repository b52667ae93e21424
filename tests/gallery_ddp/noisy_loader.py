"""Each sample is shifted and blurred with noise in __getitem__, in the loader's workers."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Signals(Dataset):
    def __init__(self, count, train):
        g = torch.Generator().manual_seed(31 + train)
        self.labels = torch.arange(count) % 2
        time = torch.linspace(0, 6.28, 16)
        self.signals = torch.sin(time * (1 + self.labels[:, None]) + torch.rand(count, 1, generator=g))
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        signal = self.signals[i]
        if self.train:
            signal = torch.roll(signal, int(torch.randint(-2, 3, ())))
            signal = signal + 0.2 * torch.randn(16)
        return signal, self.labels[i]


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(9 + rank)
    train_set = Signals(96, True)
    sampler = DistributedSampler(train_set, world, rank)
    loader = DataLoader(train_set, batch_size=24 // world, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for signal, label in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(signal), label)
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if rank == 0:
                print(f"Epoch {epoch} loss {loss.item() / world:.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
