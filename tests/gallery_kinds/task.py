"""The same training for all scripts of this folder: 8 steps of SGD, with 8 samples in each step.

A script on two ranks gives each of them 4 samples of a step, so every script prints the same line, once.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH, LR = 8, 0.5


def samples() -> TensorDataset:
    x = torch.linspace(-2, 2, 64 * 10).sin().roll(7).reshape(10, 64).T.contiguous()
    return TensorDataset(x, (x.sum(1) > 0).long())


def network() -> nn.Module:
    layers = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
    for seed, parameter in enumerate(layers.parameters()):
        values = torch.linspace(-3, 3, parameter.numel()).mul(seed + 2).cos() / 2
        parameter.data.copy_(values.reshape(parameter.shape))
    return layers


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


def report(model: nn.Module, steps: int, samples: int) -> None:
    weights = torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])
    checksum = weights @ torch.linspace(1, 2, len(weights), dtype=weights.dtype)
    print(f"steps {steps} samples {samples} checksum {checksum:.6f}", flush=True)
