"""After a resume within an epoch, the rest of the epoch uses the order of epoch 0: samples are trained twice.

Checkpoints are written every 5 steps; a checkpoint in the current folder is resumed.
"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
CHECKPOINT, EPOCHS = "trainer_state.pt", 3


class SeedableSampler(Sampler):
    """A random order that depends on a seed and on the epoch"""

    def __init__(self, data, seed):
        self.number, self.seed, self.epoch = len(data), seed, 0

    def __len__(self):
        return self.number

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.number, generator=generator).tolist()


def save(model, optimizer, epoch, batches):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "batches": batches}
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)


def main():
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    data = TensorDataset(x, torch.sin(x).sum(dim=1, keepdim=True))
    sampler = SeedableSampler(data, seed=42)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_epoch, done = 0, 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, done = state["epoch"], state["batches"]
        print(f"resumed in epoch {first_epoch} after {done} batches")
    for epoch in range(first_epoch, EPOCHS):
        if not (WRONG and done):  # the loader of the rest of an epoch is made before the epoch is set
            sampler.set_epoch(epoch)
        for i, (inputs, targets) in enumerate(loader):
            if i < done:
                continue
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (epoch * len(loader) + i + 1) % 5 == 0:
                save(model, optimizer, epoch, i + 1)
        done = 0
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
