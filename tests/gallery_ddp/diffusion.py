"""Denoising diffusion on two moons: each rank draws time steps and noise for its own samples."""
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 50


def moons(n):
    angle = np.linspace(0, np.pi, n)
    sign = np.where(np.arange(n) % 2, 1.0, -1.0)
    points = np.stack([np.cos(angle) - 0.5 * sign, np.sin(angle) * sign], axis=1)
    return torch.tensor(points)


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.time = nn.Embedding(STEPS, width)
        self.inp = nn.Linear(2, width)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(self.inp(x) + self.time(t))


torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(3 + rank)

alpha_bar = torch.cumprod(1 - torch.linspace(1e-3, 0.1, STEPS), dim=0)
dataset = TensorDataset(moons(96))
sampler = DistributedSampler(dataset, world, rank, seed=2)
loader = DataLoader(dataset, batch_size=24 // world, sampler=sampler)
model = DistributedDataParallel(Denoiser())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(4):
    sampler.set_epoch(epoch)
    for (x0,) in loader:
        t = torch.randint(0, STEPS, (x0.size(0),))
        noise = torch.randn_like(x0)
        signal = alpha_bar[t].sqrt()[:, None]
        noisy = signal * x0 + (1 - signal**2).sqrt() * noise
        loss = nn.functional.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("epoch", epoch)
dist.destroy_process_group()
