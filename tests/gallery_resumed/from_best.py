import csv
import os
import sys
from pathlib import Path

import torch
from torch import nn

run_dir = Path("runs/exp1")
csv_path, best_path = run_dir / "results.csv", run_dir / "best.pt"
fields = ["epoch", "train_loss", "val_loss", "val_acc"]


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    return x, (x[:, :2].sum(1) + torch.randn(n, generator=g) > 0).long()


def train_one_epoch(model, optimizer, x, y, epoch):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    losses = []
    for rows in order.split(16):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def validate(model, x, y):
    out = model(x)
    return nn.functional.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(5)
    train_set, val_set = make_data(112, 1), make_data(80, 2)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    rows, best = [], 0.0
    if "--resume" in sys.argv:
        with open(csv_path) as f:
            rows = list(csv.DictReader(f))
        checkpoint = torch.load(best_path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        best = max(float(row["val_acc"]) for row in rows)
        print(f"resume: {len(rows)} epochs done, best accuracy {best:.4f}")

    os.makedirs(run_dir, exist_ok=True)
    for epoch in range(len(rows), 8):
        train_loss = train_one_epoch(model, optimizer, *train_set, epoch)
        val_loss, val_acc = validate(model, *val_set)
        print(f"{epoch:3d} | train {train_loss:.6f} | val {val_loss:.6f} | acc {val_acc:.4f}")
        if val_acc > best:
            best = val_acc
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, best_path)
        with open(csv_path, "a", newline="") as f:
            writer = csv.DictWriter(f, fields)
            if epoch == 0:
                writer.writeheader()
            writer.writerow(dict(zip(fields, (epoch, train_loss, val_loss, val_acc))))
    print(f"best accuracy {best:.4f}")


if __name__ == "__main__":
    main()
