import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

local_rank = int(os.environ.get("LOCAL_RANK", 0))
rank = int(os.environ.get("RANK", 0))
world_size = int(os.environ.get("WORLD_SIZE", 1))
distributed = world_size > 1
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)

X = torch.randn(96, 6)
y = (X @ torch.randn(6, 1)).tanh()
loader = DataLoader(TensorDataset(X, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if rank == 0:
    print(f"training on {world_size} workers")
for epoch in range(5):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.10f}")
