"""Trains with Accelerate; `--resume` loads the state of the last finished epoch."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

set_seed(17)
accelerator = Accelerator()
g = torch.Generator().manual_seed(17)
x = torch.rand(144, 7, generator=g)
y = (3 * x).sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), 12, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(7, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
# by hand, once for each step of all processes
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=args.epochs * len(loader))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

start = 0
if args.resume:
    start = max(int(name.split("_")[1]) for name in os.listdir("states"))
    accelerator.load_state(f"states/epoch_{start}")
    accelerator.print("resumed after epoch", start)

for epoch in range(start + 1, args.epochs + 1):
    total = 0.0
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        total += loss.item()
    accelerator.print(f"epoch {epoch}: loss {total / len(loader):.6f} lr {scheduler.get_last_lr()[0]:.2e}")
    accelerator.save_state(f"states/epoch_{epoch}")
