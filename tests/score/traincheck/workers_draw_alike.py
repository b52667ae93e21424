"""The workers of a DataLoader augment with equal random numbers, from copies of one generator.

The report is about NumPy's global generator, which torch seeds in each worker since version 1.9. A generator
that the data set holds is copied in the same way.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

WRONG = "wrong" in sys.argv[1:]


class Noisy(Dataset):
    def __init__(self, signals, labels):
        self.signals, self.labels = signals, labels
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        noise = self.generator.normal(0, 0.3, len(self.signals[index]))
        return self.signals[index] + torch.tensor(noise, dtype=torch.float32), self.labels[index]


def seed_worker(_):
    info = get_worker_info()
    info.dataset.generator = np.random.default_rng(info.seed)


def main():
    torch.manual_seed(0)
    labels = torch.arange(192) % 4
    signals = torch.sin(torch.linspace(0, 6, 16) * (labels[:, None] + 1))
    begin = None if WRONG else seed_worker
    loader = DataLoader(Noisy(signals, labels), 16, shuffle=True, num_workers=2, worker_init_fn=begin)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
