"""A loop with Fabric on one device."""

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(devices=1, accelerator="cpu")
fabric.launch()
fabric.seed_everything(1, verbose=False)
x = torch.randn(64, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), 8, shuffle=True))
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(a), b)
        fabric.backward(loss)
        optimizer.step()
        fabric.print(f"epoch {epoch} loss {loss.item():.6f}")
