"""The first evaluation comes before the first forward in training mode, which initializes spectral norm."""

import sys

import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def evaluate(model, loader):
    model.eval()
    loss, number = 0.0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            loss += nn.functional.cross_entropy(model(inputs), targets, reduction="sum").item()
            number += len(inputs)
    return loss / number


def main():
    torch.manual_seed(0)
    features = torch.randn(320, 12)
    labels = (features @ torch.randn(12, 4)).argmax(1)
    train = DataLoader(TensorDataset(features[:256], labels[:256]), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(features[256:], labels[256:]), batch_size=32)
    model = nn.Sequential(
        spectral_norm(nn.Linear(12, 32)),
        nn.ReLU(),
        spectral_norm(nn.Linear(32, 32)),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    if not WRONG:
        with torch.no_grad():
            for inputs, _ in train:
                model(inputs)
    print(f"before training: loss {evaluate(model, test):.4f}")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for inputs, targets in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {evaluate(model, test):.4f}")


if __name__ == "__main__":
    main()
