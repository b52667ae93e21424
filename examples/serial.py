"""A plain PyTorch training script for one device; `joined.py` is its twin for any number of workers.

Run it with ``python examples/serial.py``; it leaves ``model.pt`` in the current folder.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE = 3, 64


def images(count: int, *, seed: int) -> TensorDataset:
    """Draw images of ten classes, 8 x 8 pixels: a pattern of the class under noise."""
    patterns = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 1, 8, 8, generator=generator)
    return TensorDataset(patterns[labels] + 0.5 * noise, labels)


def main() -> None:
    torch.set_default_dtype(torch.float64)  # to compare the losses to many digits
    torch.manual_seed(0)
    device = "cpu"
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    # 1001 = 15 x 64 + 41: the last batch is short. The samples are drawn at random, and read as drawn.
    train_set, test_set = images(1001, seed=2), images(500, seed=3)
    train_loader = DataLoader(train_set, batch_size=BATCH_SIZE)
    test_loader = DataLoader(test_set, batch_size=BATCH_SIZE)

    for epoch in range(EPOCHS):
        model.train()
        loss_sum = 0.0
        for batch, labels in train_loader:
            scores = model(batch.to(device))
            loss = F.cross_entropy(scores, labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)

        model.eval()
        correct = 0
        with torch.no_grad():
            for batch, labels in test_loader:
                scores = model(batch.to(device))
                correct += (scores.argmax(1) == labels.to(device)).sum().item()
        print(f"epoch {epoch + 1}: loss {loss_sum / len(train_set):.9f}, right {correct}/{len(test_set)}")

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
