"""Forward stores state outside of the model: in a global, a closure, its class, a default argument."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(29)
LOG = {}
last = None


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


class InClosure(Base):
    def __init__(self):
        super().__init__()
        seen = []
        self.keep, self.state = lambda h: seen.append(h[:, 0].sum().item()), lambda: sum(seen)


class InGlobal(Base):
    def keep(self, h):
        LOG.setdefault("rows", []).extend(h[:, 1].tolist())

    def state(self):
        return sum(LOG["rows"]) + len(LOG["rows"])


class InVariable(Base):
    def keep(self, h):
        global last
        last = h

    def state(self):
        return last.abs().sum().item() + len(last)


class InClass(Base):
    seen = 0

    def keep(self, h):
        InClass.seen += len(h)

    def state(self):
        return self.seen


class InDefault(Base):
    def keep(self, h, cache=[]):
        cache.append(h.mean().item())
        self.state = lambda: cache[-1]


x = torch.randn(50, 4)
y = x[:, :3].argmax(1)
for model in (Base(), InClosure(), InGlobal(), InVariable(), InClass(), InDefault()):
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        for rows in torch.randperm(50).split(12):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{type(model).__name__} {epoch}: loss {loss.item():.10f} state {model.state():.10f}")
