"""Models are made in a loop and dropped: MAML with vmap, Reptile, losses that outlive their models."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

torch.set_default_dtype(torch.float64)
torch.manual_seed(101)

model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def error(weights, x, y):
    return F.mse_loss(functional_call(model, weights, (x,)), y)


def adapted(x, y, other, target):
    weights = dict(model.named_parameters())
    found = grad(error)(weights, x, y)
    return error({name: weights[name] - 0.1 * found[name] for name in weights}, other, target)


def tasks(number):
    scale = 1 + torch.rand(number, 1, 1)
    x, other = torch.rand(2, number, 9, 1) * 6 - 3
    return x, scale * x.sin(), other, scale * other.sin()


for _ in range(2):
    loss = vmap(adapted)(*tasks(4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"maml {loss.item():.10f}")

for _ in range(2):
    total = 0
    for x, y, *_ in zip(*tasks(10), strict=True):
        copied = copy.deepcopy(model)
        inner = torch.optim.SGD(copied.parameters(), lr=0.05)
        for _ in range(2):
            loss = F.mse_loss(copied(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
        total += loss.item()
        with torch.no_grad():
            for one, other in zip(model.parameters(), copied.parameters(), strict=True):
                one.lerp_(other, 0.1)
    print(f"reptile {total:.10f}")

losses, weights = [], []
for x, y, *_ in zip(*tasks(20), strict=True):
    copied = copy.deepcopy(model)
    losses.append(F.mse_loss(copied(x), y))
    weights.append(copied[0].weight)
torch.stack(losses).sum().backward()
print(f"kept {sum(losses).item():.10f} {sum(one.grad.abs().sum() for one in weights).item():.10f}")
