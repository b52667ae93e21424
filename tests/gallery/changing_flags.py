"""Flags that are not attributes of the model: in a nested configuration, a dict, a list, a counter of calls, a buffer."""
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(16)


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


class Nested(Base):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(model=SimpleNamespace(center=False), size=8)

    def centered(self):
        return self.config.model.center


class InDict(Base):
    def __init__(self):
        super().__init__()
        self.options = {"norm": {"center": False}}

    def centered(self):
        return self.options["norm"]["center"]


class InList(Base):
    def __init__(self):
        super().__init__()
        self.flags = [0, 0]

    def centered(self):
        return self.flags[1] > 0




class InNames(Base):
    def __init__(self):
        super().__init__()
        self.names = {"linear"}

    def centered(self):
        return "center" in self.names


class Counting(Base):
    """Changes its computation after some calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def centered(self):
        self.calls += 1
        return self.calls > 7


class CountingTensor(Base):
    """The same, with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def centered(self):
        self.step += 1
        return bool(self.step > 7)



x = torch.randn(48, 4)
y = (x[:, 0] > x[:, 1]).long() + (x[:, 2] > 0).long()

for model in (Base(), Nested(), InDict(), InList(), InNames(), Counting(), CountingTensor()):
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(3):
        if epoch == 1:
            if isinstance(model, Nested):
                model.config.model.center = True
            elif isinstance(model, InDict):
                model.options["norm"]["center"] = True
            elif isinstance(model, InList):
                model.flags[1] = 1
            elif isinstance(model, InNames):
                model.names.add("center")
        for rows in torch.randperm(48, generator=generator).split(11):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{type(model).__name__} epoch {epoch}: {loss.item():.10f}")
