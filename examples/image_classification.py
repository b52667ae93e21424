"""Trains a small residual network on images of ten classes; a plain PyTorch script for one device.

Run it with ``python examples/image_classification.py``, or on two workers with
``samestep run -n 2 examples/image_classification.py``. ``--data DIR`` reads CIFAR-10 (its binary version, not
compressed) instead of drawing images.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECORD = 1 + 3 * 32 * 32  # a byte of label, then the red, green and blue planes


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(inner + self.shortcut(x))


def cifar10(folder: Path, names: list[str]) -> TensorDataset:
    content = b"".join((folder / name).read_bytes() for name in names)
    records = torch.from_numpy(np.frombuffer(content, np.uint8).copy()).view(-1, RECORD)
    return TensorDataset(records[:, 1:].reshape(-1, 3, 32, 32) / 127.5 - 1, records[:, 0].long())


def drawn(count: int, *, seed: int) -> TensorDataset:
    """Draw images: the pattern of a class under noise."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(0.5 * patterns[labels] + torch.randn(count, 3, 32, 32, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of CIFAR-10's data_batch_1.bin ...")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=2048, help="number of images to draw without --data")
    options = parser.parse_args()
    if options.data:
        train_set = cifar10(options.data, [f"data_batch_{n}.bin" for n in range(1, 6)])
        test_set = cifar10(options.data, ["test_batch.bin"])
    else:
        train_set, test_set = drawn(options.samples, seed=1), drawn(500, seed=2)

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    stem = nn.Conv2d(3, 16, 3, padding=1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = nn.Sequential(stem, *blocks, *head).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(train_set, batch_size=64, shuffle=True)

    for epoch in range(options.epochs):
        model.train()
        for step, (images, labels) in enumerate(loader):
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step:3}: loss {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            batches = DataLoader(test_set, batch_size=250)
            right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in batches)
        print(f"epoch {epoch}: {right} of {len(test_set)} test images right")


if __name__ == "__main__":
    main()
