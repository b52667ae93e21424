"""Data that only later batches have: missing targets, outliers that are clamped in place, experts without samples."""
import signal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize

torch.set_default_dtype(torch.float64)
torch.manual_seed(43)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = parametrizations.weight_norm(nn.Linear(4, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class MissingTargets(Net):
    """A mean over the targets that were measured, and two ways to write it."""

    def forward(self, x, y):
        known = ~torch.isnan(y)
        each = (super().forward(x) - torch.nan_to_num(y)).square() * known
        return each.mean() / known.double().mean()


class Clamped(Net):
    """Changes the batch of its caller, once it has outliers."""

    def forward(self, x):
        return super().forward(x.clamp_(-4, 4))


class Outliers(Net):
    def forward(self, x):
        return super().forward(x) * (0.5 if x.abs().max().item() > 4 else 1.0)


class Measured(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        NORMS.append(gradient.norm().item())
        return gradient


NORMS = []


class Watched(Net):
    def forward(self, x):
        return Measured.apply(super().forward(x))


class Routed(Net):
    """Branches on whether an expert has samples; splitting changes the branch and not the result."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        h = super().forward(x)
        out = h.clone()
        for number, expert in enumerate(self.experts):
            chosen = h.argmax(-1) == number
            if chosen.any():
                out[chosen] = out[chosen] + expert(h[chosen])
        return out


rates = {"lr": 0.05}
signal.signal(signal.SIGUSR1, lambda *_: rates.update(lr=rates["lr"] / 2))
models = [Clamped(), MissingTargets(), Outliers(), Watched(), Routed()]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=rates["lr"])
for step in range(8):
    x, y = torch.randn(9, 4), torch.randn(9, 3)
    if step > 2:
        x[step % 9] *= 9  # outliers
        y[: 1 + step % 3, 1] = float("nan")
    loss = F.mse_loss(models[0](x), torch.nan_to_num(y)) + models[1](x, y)
    for model in models[2:]:
        loss = loss + F.mse_loss(model(x), torch.nan_to_num(y))
    optimizer.param_groups[0]["lr"] = rates["lr"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad(), parametrize.cached():
        scores = models[4](x), models[4](x[:5])
    print(f"{step} {loss.item():.10f} {x.sum().item():.10f} {scores[0].mean().item():.10f} {scores[1].mean().item():.10f} {NORMS[-1]:.10f}")
    if step == 4:
        signal.raise_signal(signal.SIGUSR1)
        print(rates["lr"])
