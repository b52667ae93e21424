"""Fabric in the processes of a launcher: each batch is split by Fabric's sampler."""

import os

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

world = int(os.environ["WORLD_SIZE"])
fabric = Fabric(devices=world, accelerator="cpu", strategy="ddp")
fabric.launch()
fabric.seed_everything(1, verbose=False)
x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), 24 // world))
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(a), b)
        fabric.backward(loss)
        optimizer.step()
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
        fabric.print(f"epoch {epoch} loss {mean.item():.4f}")
