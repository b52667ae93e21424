"""Gradients are never set to zero, so each step includes the gradients of all steps before."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def main():
    torch.manual_seed(0)
    labels = torch.arange(320) % 5
    images = torch.randn(320, 1, 8, 8) + labels[:, None, None, None] * torch.eye(8)
    train = DataLoader(TensorDataset(images[:256], labels[:256]), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(images[256:], labels[256:]), batch_size=32)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 5)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        model.train()
        for inputs, targets in train:
            if not WRONG:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in test)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {correct / 64:.3f}")


if __name__ == "__main__":
    main()
