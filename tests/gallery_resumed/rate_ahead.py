import math
import os

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR

BATCH, EPOCHS, WARMUP = 20, 6, 8
CKPT = "ckpt.pt"


def warmup_cosine(total):
    def factor(step):
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))
    return factor


def moons(n):
    g = torch.Generator().manual_seed(8)
    t = math.pi * torch.rand(n, generator=g)
    side = torch.arange(n) % 2
    x = torch.stack([torch.cos(t) * (1 - 2 * side) + side, torch.sin(t) * (1 - 2 * side) + side / 2], 1)
    return x + 0.1 * torch.randn(n, 2, generator=g), side


x, y = moons(160)
torch.manual_seed(8)
net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
optimizer = torch.optim.SGD([{"params": net.parameters(), "initial_lr": 0.5}], lr=0.5, momentum=0.9)
steps_per_epoch = len(x) // BATCH
start_epoch, last_step = 0, -1
if os.path.isfile(CKPT):
    ckpt = torch.load(CKPT)
    net.load_state_dict(ckpt["net"])
    optimizer.load_state_dict(ckpt["optimizer"])
    start_epoch = ckpt["epoch"]
    last_step = start_epoch * steps_per_epoch
    print(f"Resuming from epoch {start_epoch}")
scheduler = LambdaLR(optimizer, warmup_cosine(EPOCHS * steps_per_epoch), last_epoch=last_step)

for epoch in range(start_epoch, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for rows in order.split(BATCH):
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        accuracy = (net(x).argmax(1) == y).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.6f} accuracy {accuracy:.4f} lr {scheduler.get_last_lr()[0]:.6f}")
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, CKPT)
