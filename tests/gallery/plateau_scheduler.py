#!/usr/bin/env python3
import json
import os
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset


class SineSeries(Dataset):
    """Windows of a noisy series, and the value that comes next."""

    def __init__(self, length, window, seed):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(length, dtype=torch.get_default_dtype())
        self.series = torch.sin(0.3 * t) + 0.5 * torch.sin(0.71 * t) + 0.2 * torch.randn(length, generator=gen)
        self.window = window

    def __len__(self):
        return len(self.series) - self.window

    def __getitem__(self, i):
        return {"past": self.series[i:i + self.window], "next": self.series[i + self.window]}


class Forecaster(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3)
        self.bn = nn.BatchNorm1d(8)
        self.fc = nn.Sequential(nn.Linear(8 * (window - 2), 16), nn.PReLU(), nn.Linear(16, 1))

    def forward(self, past):
        x = torch.relu(self.bn(self.conv(past.unsqueeze(1))))
        return self.fc(x.flatten(start_dim=1)).squeeze(1)


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self):
        self.val = self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def run_epoch(model, loader, criterion, optimizer=None):
    losses = AverageMeter()
    model.train(optimizer is not None)
    for batch in loader:
        with torch.set_grad_enabled(optimizer is not None):
            loss = criterion(model(batch["past"]), batch["next"])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.update(loss.item(), batch["next"].size(0))
    return losses.avg


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(6)
    train_loader = DataLoader(SineSeries(215, 12, seed=1), batch_size=32, shuffle=True)
    val_loader = DataLoader(SineSeries(102, 12, seed=2), batch_size=32)
    model = Forecaster(12)
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.4, patience=1)

    history = []
    end = time.time()
    for epoch in range(14):
        train_loss = run_epoch(model, train_loader, criterion, optimizer)
        val_loss = run_epoch(model, val_loader, criterion)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch:2d} train {train_loss:.10f} val {val_loss:.10f} lr {lr:.10f}")
        history.append(dict(epoch=epoch, train=train_loss, val=val_loss, lr=lr))
    print(f"average epoch time {(time.time() - end) / 14:.3f}")

    os.makedirs("results", exist_ok=True)
    with open(os.path.join("results", "history.json"), "w") as f:
        json.dump(history, f, indent=4)
    torch.save(model.state_dict(), os.path.join("results", "model_final.pth"))


if __name__ == "__main__":
    main()
