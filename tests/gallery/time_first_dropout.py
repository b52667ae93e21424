"""Time comes first, sequences are of several lengths, and dropout is drawn along time, samples, or both."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(21)
H = 6


class Last(nn.Module):
    """Batches first, no dropout."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, H, batch_first=True)
        self.out = nn.Linear(H, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.rnn = nn.GRU(3, H)
        self.out = nn.Linear(H, 2)

    def forward(self, x):
        return self.out(self.rnn(self.drop(x))[0])


class Locked(Tagger):
    """One mask for all times of a sequence (AWD-LSTM)."""

    def forward(self, x):
        h, _ = self.rnn(x)
        if self.training:
            mask = h.new_empty(1, h.size(1), h.size(2)).bernoulli_(0.7) / 0.7
            h = h * mask
        return self.out(h)


class SameForAll(Tagger):
    """One mask per time for all sequences, one per unit for all of both."""

    def forward(self, x):
        h, _ = self.rnn(x)
        if self.training:
            h = h * (torch.rand(h.size(0), 1, 1) > 0.2) / 0.8
            h = h * (torch.rand(h.size(2)) > 0.2) / 0.8
        return self.out(h)


class Flat(Tagger):
    """Dropout on (T, B, H), then on (T * B, H)."""

    def forward(self, x):
        h, _ = self.rnn(x)
        T, B, _ = h.shape
        h = F.dropout(h, 0.2, self.training)
        h = F.dropout(h.reshape(T * B, H), 0.25, self.training)
        return self.out(h).view(T, B, 2)


def run(model, lengths, size):
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    kept = []
    for epoch in range(2):
        model.train()
        for steps in lengths:
            x = torch.randn(steps, size, 3)
            y = (x.cumsum(0)[..., 0] > 0).long()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            kept.append(loss.item())
        model.eval()
        with torch.no_grad():
            x = torch.randn(5, 11, 3)
            value = model(x).square().mean().item()
        print(f"{type(model).__name__} {epoch}: {np.mean(kept[-len(lengths):]):.10f} {kept[-1]:.10f} {value:.10f}")
    return kept


first = Last()
opt = torch.optim.SGD(first.parameters(), lr=0.1)
for steps in (7, 7, 4):
    x = torch.randn(8, steps, 3)
    loss = F.cross_entropy(first(x).flatten(0, 1), (x.cumsum(1)[..., 0] > 0).long().flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch first {loss.item():.10f}")

kept = []
for cls in (Tagger, Locked, SameForAll, Flat):
    kept += run(cls(), [7, 7, 7, 7, 4, 4], size=8)
    kept += run(cls(), [4, 4, 9, 3, 2, 4], size=8)
np.savetxt("losses.txt", np.array(kept), fmt="%.10f")
