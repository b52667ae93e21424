"""Outputs depend on the other samples of the batch by terms that are almost zero in the first calls."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def mix(self, h):
        return h

    def forward(self, x):
        return self.out(self.mix(self.inp(x).tanh()))


class Gated(Plain):
    """The batch's mean comes through a gate that starts nearly closed."""

    def __init__(self, start):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(start))

    def mix(self, h):
        return h + self.gate * h.mean(0)


class Repelled(Plain):
    """A small term repels samples from each other."""

    def mix(self, h):
        away = h[:, None] - h[None, :]
        return h + 2e-5 * (away / (1 + away.square().sum(-1, keepdim=True))).sum(1)


class Nudged(Plain):
    """The largest activation of the batch shifts all."""

    def mix(self, h):
        return h * (1 + 1e-6 * h.detach().abs().max())


class NoisyNorm(Plain):
    """Adds the batch's statistics with a factor of 0.0001."""

    def mix(self, h):
        return 0.9999 * h + 0.0001 * (h - h.mean(0)) / (h.std(0) + 1e-5)


def train(name, model, dtype):
    model = model.to(dtype)
    gates = [p for n, p in model.named_parameters() if n == "gate"]
    others = [p for n, p in model.named_parameters() if n != "gate"]
    groups = [{"params": others, "lr": 0.05}] + ([{"params": gates, "lr": 0.5}] if gates else [])
    opt = torch.optim.SGD(groups)
    generator = torch.Generator().manual_seed(9)
    total = 0.0
    for step in range(25):
        x = torch.randn(11, 6, generator=generator, dtype=torch.float64).to(dtype) + 1
        y = (x[:, 0] > x[:, 1]).long() + (x[:, 2] > 1).long()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    digits = 10 if dtype == torch.float64 else 5
    gate = f" gate {gates[0].item():.{digits}f}" if gates else ""
    print(f"{name}: last {loss.item():.{digits}f} mean {total / 25:.{digits}f}{gate}")


train("plain", Plain(), torch.float64)
for dtype in (torch.float64, torch.float32):
    train(f"{dtype} gate 1e-5", Gated(1e-5), dtype)
    train(f"{dtype} gate 1e-11", Gated(1e-11), dtype)
    train(f"{dtype} repelled", Repelled(), dtype)
    train(f"{dtype} nudged", Nudged(), dtype)
    train(f"{dtype} noisy norm", NoisyNorm(), dtype)
