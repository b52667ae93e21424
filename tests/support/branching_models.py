"""Models with behavior that only later batches show: branches, missing values, writes to inputs."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from support.split_check_models import drawn

D = torch.float64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = parametrizations.weight_norm(nn.Linear(4, 8, dtype=D))
        self.head = nn.Linear(8, 3, dtype=D)

    def forward(self, x, y):
        return self.head(torch.tanh(self.body(x)))


class Branches(Net):
    """Takes another branch for a batch with a value that no check has covered."""

    def forward(self, x, y):
        return super().forward(x, y) * (0.5 if (x == 60).any() else 1.0)


class Scales(Net):
    """Divides by the largest value of the batch, once that is large."""

    def forward(self, x, y):
        return super().forward(x / x.abs().max().clamp(min=50), y)


class Compares(Net):
    """Takes another branch for a batch with a large number."""

    def forward(self, x, y):
        return super().forward(x, y) * (0.5 if x.max().item() > 50 else 1.0)


class Routes(Net):
    """Branches without an effect on other samples, as mixtures of experts do."""

    def forward(self, x, y):
        scores = super().forward(x, y)
        for number in range(3):
            chosen = scores.argmax(1) == number
            if chosen.any():
                scores = scores + torch.where(chosen, number, 0).unsqueeze(1)
        return scores


class MissingTargets(Net):
    def forward(self, x, y):
        known = ~torch.isnan(y)
        each = (super().forward(x, y) - torch.nan_to_num(y)).square() * known
        return each.mean() / known.double().mean()


class Clamps(Net):
    def forward(self, x, y):
        x.clamp_(-50, 50)
        return super().forward(x, y)


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        NOTED["norm"] = float(gradient.norm())
        return gradient


NOTED = {"norm": 0.0}


class NotesInBackward(Net):
    def forward(self, x, y):
        return Noting.apply(super().forward(x, y))


class Selects(Net):
    """Compares samples once a mask selects one, whose number alone it reads."""

    def forward(self, x, y):
        scores = super().forward(x, y)
        return scores - scores.mean(0) if (x[:, 0] == 60).nonzero().shape[0] else scores


class Indexes(Net):
    def forward(self, x, y):
        scores = super().forward(x, y)
        return scores - scores.mean(0) if len(x[x[:, 0] == 60]) else scores


class ReadsArray(Net):
    def forward(self, x, y):
        scores = super().forward(x, y)
        return scores - scores.mean(0) if 60 in x.numpy() else scores


class Transposes(Net):
    """Compares samples in a late call, by the same operations along other dimensions."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        scores = super().forward(x, y).unsqueeze(1).expand(-1, 2, -1)
        dims = (0, 2) if self.calls % 1009 == 4 else (1, 2)
        return torch.softmax(scores.transpose(*dims), 2).transpose(*dims)


def batch(number, count=9):
    """Return a batch; from the third on with large values in all slices, and missing targets in the first."""
    x, y = drawn(count, 4, seed=number), drawn(count, 3, seed=10 + number)
    if number > 1:
        x[1::3, 0], y[:3, 1] = 60.0, float("nan")
    return x, y


def trained(make):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for number in range(5):
        x, y = batch(number)
        result = model(x, y)
        loss = result.square().mean() + x.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results += [loss.item(), NOTED["norm"] if make is NotesInBackward else 0.0]
    return results


def with_cache():
    """Return losses, and scores with parametrized weights that torch caches."""
    torch.manual_seed(0)
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 8, dtype=D)), nn.Linear(8, 3, dtype=D))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for number in range(3):
        x, y = drawn(9, 4, seed=number), drawn(9, 3, seed=10 + number)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad(), parametrize.cached():
            results += [loss.item(), F.mse_loss(model(x), y).item(), model(x[:5]).sum().item()]
    return results
