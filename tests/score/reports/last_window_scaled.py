"""The last window of an epoch has fewer batches, and its gradients are divided by the number of a full window.

Accumulation over 4 batches, 10 batches in an epoch.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]
ACCUMULATION = 4


def make_data(number=160):
    generator = torch.Generator().manual_seed(11)
    images = torch.randn(number, 1, 12, 12, generator=generator)
    labels = (images[:, 0, :6].sum(dim=(1, 2)) > images[:, 0, 6:].sum(dim=(1, 2))).long()
    return TensorDataset(images, labels)


def main():
    torch.manual_seed(11)
    train, test = make_data(160), make_data(64)
    loader = DataLoader(train, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        model.train()
        for i, (images, labels) in enumerate(loader):
            first = i - i % ACCUMULATION
            window = min(ACCUMULATION, len(loader) - first)
            loss = F.cross_entropy(model(images), labels) / (ACCUMULATION if WRONG else window)
            loss.backward()
            if (i + 1) % ACCUMULATION == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=32))
        print(f"epoch {epoch}: accuracy {right / len(test):.3f}")


if __name__ == "__main__":
    main()
