"""Models whose calls are unsplit, and whose parts are split: hooks, NumPy arguments, compiled parts, iterators."""
import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.set_default_dtype(torch.float64)
torch.manual_seed(29)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())


class Hooked(Plain):
    """Experiment trackers register such hooks, to record weights and gradients."""


class FromArrays(Plain):
    def forward(self, x, scales):
        return super().forward(torch.from_numpy(x)) * torch.tensor(scales).unsqueeze(1)


@torch.jit.script
def soft_clamp(x, limit: float):
    return (x / limit).tanh() * limit


class Clamps(Plain):
    """Split as a whole: TorchScript has compiled a function that it calls."""

    def forward(self, x):
        return super().forward(soft_clamp(x, limit=1.5))


class WithScript(Plain):
    def __init__(self):
        super().__init__()
        self.script = torch.jit.script(nn.Linear(3, 3))

    def forward(self, x):
        return self.script(super().forward(x))


class Cycles(Plain):
    def __init__(self):
        super().__init__()
        self.scales = itertools.cycle([0.5, 2.0])

    def forward(self, x):
        return super().forward(x) * next(self.scales)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(5, 6), nn.Dropout(0.2)

    def forward(self, x):
        return checkpoint(lambda rows: self.drop(self.inner(rows)).tanh(), x, use_reentrant=False)


class Centered(nn.Module):
    """A checkpoint, dropout and shared weights in what is split in place of a call that couples its samples."""

    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(6, 3)
        self.again = self.head

    def forward(self, x):
        h = self.block(x)
        h = h - h.mean(0) * h.var()
        return self.head(h) + 0.1 * self.again(h**2)


seen, kept = [], []
for make in (Hooked, FromArrays, Clamps, WithScript, Cycles, Centered):
    model = make()
    kept.append(model)  # a class whose models end after a few calls is not checked
    if make is Hooked:
        model.register_forward_hook(lambda module, _, out: seen.append((len(out), module.head.weight.norm().item())))
        model.head.register_full_backward_hook(lambda _, __, grads: seen.append((len(grads[0]), grads[0].norm().item())))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(5):
        x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
        out = model(x.numpy(), [float(one) + 0.5 for one in y]) if make is FromArrays else model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(make.__name__, step, f"{loss.item():.8f}", f"{sum(p.square().sum() for p in model.parameters()):.8f}")
print(len(seen), f"{np.sum([value for _, value in seen]):.8f}", {count for count, _ in seen})
