"""Draws random numbers of Python, NumPy and torch in the workers of a loader, which persist or do not."""
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

random.seed(8)
np.random.seed(8)
torch.manual_seed(8)
torch.set_default_dtype(torch.float64)


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, number):
        noise = np.random.randn(4) + random.random()
        return torch.from_numpy(noise) + torch.randn(4), torch.tensor([float(number % 4)])


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        generator = np.random.default_rng(worker.seed % 2**32)
        for _ in range(16):
            yield torch.from_numpy(generator.normal(size=4)) + torch.rand(4), torch.tensor([float(worker.id)])


model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def epoch(loader):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("%.10f" % loss.item(), end=" ")
    print()


def seeded(worker):
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


for persists in (False, True):
    print("persistent" if persists else "new workers")
    loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=2, persistent_workers=persists)
    for _ in range(2):
        epoch(loader)
    del loader
epoch(DataLoader(Noisy(), 8, num_workers=2, worker_init_fn=seeded, generator=torch.Generator().manual_seed(9)))
epoch(DataLoader(Stream(), 8, num_workers=2))
print("%.10f %.10f %.10f" % (random.random(), np.random.rand(), torch.rand(()).item()))
