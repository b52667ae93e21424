"""Rare layers of torch: weights written in forward, bags with offsets, unusual random numbers, lazy shapes."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

torch.set_default_dtype(torch.float64)
torch.manual_seed(51)
WORDS = 20


class Renormed(nn.Module):
    """max_norm: forward normalizes the selected rows of the weight in place."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6, max_norm=1.0)
        self.fc = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.fc(self.embed(tokens).mean(1))


class Bag(nn.Module):
    """Text classification: all words in one row, offsets say where each text begins."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 6, mode="mean")
        self.fc = nn.Linear(6, 3)

    def forward(self, words, offsets):
        return self.fc(self.bag(words, offsets))


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.fc(self.embed(tokens).sum(1))


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(12), nn.LazyBatchNorm1d(), nn.RReLU(), nn.LazyLinear(3))

    def forward(self, tokens):
        return self.net(tokens.double())


class Normed(nn.Module):
    """Power iteration in each call of training, and a weight with a separate norm."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(spectral_norm(nn.Linear(5, 8)), nn.Tanh(), weight_norm(nn.Linear(8, 3)))

    def forward(self, tokens):
        return self.net(tokens / WORDS)


class Images(nn.Module):
    """Running statistics of each image's own, pooling in random places, whole channels dropped."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.pool = nn.FractionalMaxPool2d(2, output_size=3)
        self.fc = nn.Linear(36, 3)

    def forward(self, tokens):
        x = tokens.double().unsqueeze(2).expand(-1, 5, 5).unsqueeze(1) / WORDS
        h = F.dropout2d(self.norm(self.conv(x)), 0.2, self.training)
        return self.fc(self.pool(h).flatten(1))


class Adaptive(nn.Module):
    """The loss comes from a layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.out = nn.AdaptiveLogSoftmaxWithLoss(8, 3, cutoffs=[1, 2])

    def forward(self, tokens, labels):
        return self.out(self.embed(tokens).sum(1), labels)


tokens = torch.randint(0, WORDS, (46, 5))
labels = tokens.sum(1) % 3
kept = {}
for model in (Summed(), Renormed(), Bag(), Lazy(), Normed(), Images(), Adaptive()):
    name = type(model).__name__
    if isinstance(model, Lazy):
        model(tokens[:2])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        model.train()
        for rows in torch.randperm(46).split(10):
            x, y = tokens[rows], labels[rows]
            if isinstance(model, Bag):
                lengths = 1 + rows % 5
                words = torch.cat([one[:n] for one, n in zip(x, lengths)])
                out = model(words, torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]))
            elif isinstance(model, Adaptive):
                out = model(x, y)
            else:
                out = model(x)
            loss = out.loss if isinstance(model, Adaptive) else F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        size = sum(p.detach().square().sum().item() for p in model.state_dict().values() if p.is_floating_point())
        print(f"{name} epoch {epoch}: {loss.item():.10f} weights {size:.10f}")
    kept[name] = np.concatenate([p.detach().double().flatten().numpy() for p in model.state_dict().values()])
np.savez("layers.npz", **kept)
