import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "amp.pt"

torch.manual_seed(4)
g = torch.Generator().manual_seed(4)
features = torch.randn(128, 8, generator=g)
prices = 8 * features.sum(1, keepdim=True) + 20
shuffle = torch.Generator()
loader = DataLoader(TensorDataset(features, prices), 16, shuffle=True, generator=shuffle)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
epoch = 0
if os.path.exists(CHECKPOINT):
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch = state["epoch"]

while epoch < 5:
    shuffle.manual_seed(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    epoch += 1
    print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, CHECKPOINT)
