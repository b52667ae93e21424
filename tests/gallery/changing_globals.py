"""Forward depends on globals, closures, a class and the environment, beside the attributes of the model."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(16)
CENTER = False
calls = 0
box = {"on": False}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)

    def centered(self):
        return False

    def forward(self, x):
        h = self.fc1(x).tanh()
        if self.centered():
            h = h - h.mean(0)
        return self.fc2(h)


class Global(Base):
    def centered(self):
        return CENTER


class GlobalCount(Base):
    """Changes its computation after some calls, which a global counts."""

    def centered(self):
        global calls
        calls += 1
        return calls > 7


class Closure(Base):
    def __init__(self, flag):
        super().__init__()
        self.centered = flag


class OfClass(Base):
    center = False

    def centered(self):
        return OfClass.center


class Environment(Base):
    def centered(self):
        return os.environ.get("CENTER") == "1"


x = torch.randn(48, 4)
y = (x[:, 0] > x[:, 1]).long() + (x[:, 2] > 0).long()
for model in (Base(), Global(), GlobalCount(), Closure(lambda: box["on"]), OfClass(), Environment()):
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(3):
        CENTER = box["on"] = OfClass.center = epoch > 0
        os.environ["CENTER"] = str(int(epoch > 0))
        for rows in torch.randperm(48, generator=generator).split(11):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{type(model).__name__} epoch {epoch}: {loss.item():.10f}")
print("calls", calls)
