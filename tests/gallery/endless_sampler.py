"""Denoising diffusion on points in the plane."""
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


def cycle(loader):
    while True:
        yield from loader


def exists(x):
    return x is not None


def swiss_roll(n):
    t = 1.5 * math.pi * (1 + 2 * torch.rand(n))
    points = torch.stack([t * torch.cos(t), t * torch.sin(t)], dim=1)
    return (points + 0.3 * torch.randn(n, 2)) / 8


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freq = torch.exp(torch.arange(half) * (-math.log(1000) / (half - 1)))
        angles = t[:, None] * freq[None, :]
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.time_mlp = nn.Sequential(SinusoidalPosEmb(16), nn.Linear(16, dim), nn.GELU())
        self.inp = nn.Linear(2, dim)
        self.mid = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, x, t):
        h = nn.functional.gelu(self.inp(x) + self.time_mlp(t))
        return self.out(nn.functional.gelu(self.mid(h)))


class Diffusion(nn.Module):
    def __init__(self, model, steps=30):
        super().__init__()
        self.model, self.steps = model, steps
        betas = torch.linspace(1e-3, 0.2, steps)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, dim=0))

    def forward(self, x, noise=None):
        t = torch.randint(0, self.steps, (x.shape[0],))
        noise = noise if exists(noise) else torch.randn_like(x)
        a = self.alphas_cumprod[t][:, None]
        predicted = self.model(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        return nn.functional.mse_loss(predicted, noise)

    @torch.no_grad()
    def sample(self, n):
        x = torch.randn(n, 2)
        for i in reversed(range(self.steps)):
            eps = self.model(x, torch.full((n,), i))
            beta, a = self.betas[i], self.alphas_cumprod[i]
            x = (x - beta / (1 - a).sqrt() * eps) / (1 - beta).sqrt()
            if i > 0:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x


if __name__ == "__main__":
    torch.manual_seed(5)
    dl = cycle(DataLoader(TensorDataset(swiss_roll(203)), batch_size=32, shuffle=True))
    diffusion = Diffusion(Denoiser())
    opt = torch.optim.Adam(diffusion.parameters(), lr=3e-3, betas=(0.9, 0.99))
    total = 0.0
    for step in range(1, 101):
        (batch,) = next(dl)
        loss = diffusion(batch)
        loss.backward()
        opt.step()
        opt.zero_grad()
        total += loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.10f}, mean of the last 20 {total / 20:.10f}")
            total = 0.0
        if step % 50 == 0:
            torch.save({"step": step, "model": diffusion.state_dict()}, f"model-{step // 50}.pt")
    points = diffusion.sample(41)
    print(f"sampled points: mean {points.mean():.10f}, std {points.std():.10f}")
    np.save("points.npy", points.numpy())
