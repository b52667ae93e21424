"""Models that branch on numbers that they read from their samples, in many ways."""

import math
import random

import torch
from torch import nn

from support.split_check_models import drawn

D = torch.float64
RARE, LIMIT = 90_000, 50_000
"""A number in one sample of the later batches, and one between it and all others."""

READS = {
    "largest": (lambda ids: ids.max().item(), LIMIT),
    "sum": (lambda ids: ids.sum().item(), LIMIT),
    "largest of a list": (lambda ids: max(ids.amax(1).tolist()), LIMIT),
    "sum of a list": (lambda ids: sum(ids[:, 0].tolist()), LIMIT),
    "sorted list": (lambda ids: sorted(ids[:, 0].tolist())[-1], LIMIT),  # noqa: FURB192 - another comparison
    "nested list": (lambda ids: max(max(row) for row in ids.tolist()), LIMIT),
    "list of one": (lambda ids: ids.max().tolist(), LIMIT),
    "float": (lambda ids: ids.double().max().item(), LIMIT),
    "spread": (lambda ids: ids.max().item() - ids.min().item(), LIMIT),
    "both ends": (lambda ids: max(ids.max().item(), -ids.min().item()), LIMIT),
}
COMPUTED = {
    "itself": lambda n: n,
    "linear": lambda n: 2 * n - 1,
    "part": lambda n: n // 3,
    "half": lambda n: n / 2,
    "fraction": lambda n: n * 0.25,
    "negative": lambda n: -(10 - n),
    "magnitude": lambda n: abs(n),
    "quotient": lambda n: divmod(n, 7)[0],
    "from above": lambda n: 10**9 - (10**9 - n),
    "shifted": lambda n: math.floor(n) << 1,
    "floor": lambda n: math.floor(n / 2),
    "rounded": lambda n: round(n / 3),
    "at least": lambda n: max(1, n),
    "square": lambda n: n**2,
    "float of it": lambda n: n + 0.5,
}
COMPARED = {
    "above": lambda n, limit: n > limit,
    "below": lambda n, limit: limit < n,
    "not up to": lambda n, limit: not n <= limit,
    "from": lambda n, limit: n >= limit,
    "between": lambda n, limit: limit <= n < 10**12,
    "larger of two": lambda n, limit: max(limit, n) != limit,
    "rest": lambda n, limit: bool(max(0, n - limit)),
    "matched": lambda n, limit: _matched(n, limit),
    "loop": lambda n, limit: _looped(n, limit),
}


def _matched(n, limit):
    match n:
        case _ if n > limit:
            return True
        case _:
            return False


def _looped(n, limit):
    while n > limit:
        return True
    return False


class Reading(nn.Module):
    """Takes another branch for a batch with a rare number."""

    def __init__(self, read, computed, compared):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8, dtype=D), nn.Linear(8, 3, dtype=D)
        self.words = nn.Embedding(9, 8, dtype=D)
        self.read, self.limit = READS[read]
        self.computed, self.compared = COMPUTED[computed], COMPARED[compared]

    def forward(self, x, ids):
        hidden = self.body(x) + self.words(ids.clamp(max=8)).mean(1)
        scores = self.head(torch.tanh(hidden))
        number = self.read(ids)
        if self.compared(self.computed(number), self.computed(self.limit)):
            scores = scores * 0.5
        return scores


class Loops(Reading):
    """Loops to the largest length of its samples, asserts that it is short, and reads each length."""

    def __init__(self):
        super().__init__("largest", "itself", "above")

    def forward(self, x, ids):
        lengths = ids[:, 0]
        longest, time = lengths.max().item(), 0
        if longest > LIMIT:
            raise ValueError(longest)
        hidden = self.words(ids).mean(1)
        while time < longest:
            going_on = (lengths > time).unsqueeze(1)
            hidden = torch.where(going_on, torch.tanh(self.body(x) + hidden), hidden)
            time += 1
        for sample, length in enumerate(lengths.tolist()):
            if length > 0:
                hidden = hidden + (torch.arange(len(x)) == sample).unsqueeze(1) * (length / 100)
        return self.head(hidden)


class AsksForParameter(Reading):
    """Takes another branch for an input that is a parameter."""

    def __init__(self):
        super().__init__("largest", "itself", "above")

    def forward(self, x, ids):
        return super().forward(x, ids) * (0.5 if isinstance(x, nn.Parameter) else 1.0)


def of_parameter():
    """Return the results of calls with an input that is a parameter."""
    torch.manual_seed(0)
    model, x = AsksForParameter(), nn.Parameter(drawn(8, 4))
    ids = torch.ones(8, 4, dtype=torch.int64)
    return [model(x, ids).square().mean().item() for _ in range(3)]


def kinds(seed):
    """Return what a random model reads, computes and compares."""
    random_ = random.Random(seed)
    return tuple(random_.choice([*names]) for names in (READS, COMPUTED, COMPARED))


def trained(make, *args, rare=RARE):
    """Return the losses of a training whose later batches have a rare number in the first sample."""
    torch.manual_seed(0)
    model = make(*args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for number in range(5):
        x = drawn(9, 4, seed=number)
        ids = torch.randint(1, 9, (9, 4), generator=torch.Generator().manual_seed(number))
        if number > 1:
            ids[0, 0] = rare
        loss = model(x, ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())
    return results
