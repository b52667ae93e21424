import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--patience", type=int, default=3)
parser.add_argument("--max-epochs", type=int, default=14)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class EarlyStopping:
    def __init__(self, patience, path):
        self.patience, self.path = patience, path
        self.best, self.bad_epochs = float("inf"), 0

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad_epochs = value, 0
            torch.save(model.state_dict(), self.path)
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


torch.manual_seed(2)
g = torch.Generator().manual_seed(2)
x = torch.randn(140, 10, generator=g)
y = (x[:, 0] + 1.5 * torch.randn(140, generator=g) > 0).long()
shuffle = torch.Generator()
train_loader = DataLoader(TensorDataset(x[:80], y[:80]), 16, shuffle=True, generator=shuffle)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
stopping = EarlyStopping(args.patience, "best.pt")
epoch = 0
if args.resume:
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch = state["epoch"]
    print(f"resumed after epoch {epoch}")

while epoch < args.max_epochs:
    shuffle.manual_seed(epoch)
    for a, b in train_loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    epoch += 1
    with torch.no_grad():
        val_loss = nn.functional.cross_entropy(model(x[80:]), y[80:]).item()
    is_over = stopping(val_loss, model)
    print(f"epoch {epoch} train {loss.item():.6f} val {val_loss:.6f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
    if is_over:
        print("early stopping")
        break
