"""Learns from a stream of events that is never held in memory as a whole."""
import math
import random
import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_default_dtype(torch.float64)


class SensorStream(IterableDataset):
    """Readings of eight sensors, and whether there is a fault."""

    def __init__(self, seed, count):
        super().__init__()
        self.seed = seed
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        step = 1 if info is None else info.num_workers
        first = 0 if info is None else info.id
        for number in range(first, self.count, step):
            source = random.Random(self.seed * 100003 + self.epoch * 1009 + number)
            fault = source.random() < 0.4
            phase = source.uniform(0, 2 * math.pi)
            readings = [math.sin(phase + k * (0.9 if fault else 0.6)) + source.gauss(0, 0.3) for k in range(8)]
            yield torch.tensor(readings), float(fault)


def build_model():
    model = nn.Sequential()
    model.add_module("hidden1", nn.Linear(8, 32))
    model.add_module("act1", nn.LeakyReLU())
    model.add_module("hidden2", nn.Linear(32, 16))
    model.add_module("act2", nn.LeakyReLU())
    model.add_module("out", nn.Linear(16, 1))
    model.add_module("prob", nn.Sigmoid())
    return model


def run_eval(model, loader, bce):
    total, hits, seen = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            p = model(x).squeeze(-1)
            total += bce(p, y).item() * y.shape[0]
            hits += ((p > 0.5) == y.bool()).sum().item()
            seen += y.shape[0]
    model.train()
    return total / seen, hits / seen


def main(argv):
    epochs = int(argv[1]) if len(argv) > 1 else 6
    torch.manual_seed(99)
    model = build_model()
    bce = nn.BCELoss()
    opt = optim.Adamax(model.parameters(), lr=0.01)
    train = SensorStream(seed=1, count=231)
    train_loader = DataLoader(train, batch_size=17)
    valid_loader = DataLoader(SensorStream(seed=2, count=120), batch_size=17)
    seen = 0
    for epoch in range(epochs):
        train.set_epoch(epoch)
        for step, (x, y) in enumerate(train_loader):
            loss = bce(model(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y)
            if step % 6 == 5:
                sys.stdout.write("after {:4d} events: loss {:.10f}\n".format(seen, loss.item()))
        loss, acc = run_eval(model, valid_loader, bce)
        sys.stdout.write("epoch {}: valid loss {:.10f} accuracy {:.10f}\n".format(epoch, loss, acc))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv)
