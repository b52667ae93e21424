"""Forward keeps histories, meters and the last features in plain containers, and the loop reads them."""
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(29)


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)

    def keep(self, h):
        pass

    def state(self):
        return 0.0

    def forward(self, x):
        h = self.fc1(x).tanh()
        self.keep(h.detach())
        return self.fc2(h)


class InDict(Base):
    def __init__(self):
        super().__init__()
        self.store = {"last": None, "seen": 0}

    def keep(self, h):
        self.store["last"] = h
        self.store["seen"] += len(h)

    def state(self):
        return self.store["last"].sum().item() + self.store["seen"]


class InList(Base):
    def __init__(self):
        super().__init__()
        self.history = []

    def keep(self, h):
        self.history.append(h.norm().item())

    def state(self):
        return sum(self.history)


class InMeter(Base):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def keep(self, h):
        self.meter.update(h.abs().max().item(), len(h))

    def state(self):
        return self.meter.sum / self.meter.count


class InDeque(Base):
    """The mean of the last features goes into the next call."""

    def __init__(self):
        super().__init__()
        self.recent = deque(maxlen=3)

    def keep(self, h):
        self.recent.append(h.mean(0))

    def state(self):
        return torch.stack(list(self.recent)).sum().item()

    def forward(self, x):
        h = self.fc1(x).tanh()
        if self.recent:
            h = h - 0.1 * torch.stack(list(self.recent)).mean(0)
        self.keep(h.detach())
        return self.fc2(h)


class InArray(Base):
    def __init__(self):
        super().__init__()
        self.counts = np.zeros(8)

    def keep(self, h):
        self.counts += (h > 0).sum(0).numpy()

    def state(self):
        return float(self.counts @ np.arange(8))


class InNumber(Base):
    """A running scale, as a Python number, that is used at once."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def keep(self, h):
        self.scale = 0.9 * self.scale + 0.1 * h.std().item()

    def state(self):
        return self.scale

    def forward(self, x):
        return super().forward(x) * self.scale


x = torch.randn(50, 4)
y = x[:, :3].argmax(1)
kept = {}
for model in (Base(), InDict(), InList(), InMeter(), InDeque(), InArray(), InNumber()):
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        for rows in torch.randperm(50).split(12):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{type(model).__name__} {epoch}: loss {loss.item():.10f} state {model.state():.10f}")
    kept[type(model).__name__] = model.state()
np.savez("states.npz", **kept)
