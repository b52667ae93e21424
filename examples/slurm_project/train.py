"""Trains a small network, and resumes from its last checkpoint; a plain PyTorch script for one device.

Run it with ``python train.py``, or as a job of several workers with ``sbatch job.sh``.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CHECKPOINT, EPOCHS, BATCH_SIZE = Path("checkpoint.pt"), 4, 64


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(640, 20)
    y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH_SIZE):
            loss = F.cross_entropy(model(x[batch].to(device)), y[batch].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.5f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, CHECKPOINT)


if __name__ == "__main__":
    main()
