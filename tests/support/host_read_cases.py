"""Models whose split calls must read nothing from a device, and a loop that counts what they read."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.script.options import Options
from support.host_reads import HostReads
from support.script_runner import run_script
from support.split_check_models import Divided, Masked, Net, drawn, labels

D = torch.float64
WARM_UP, COUNTED = 3, 5
SPLIT = Options(check_every=0, short_calls="split")


def batch(number):
    """Return a batch; all labels of its first half are ignored in some batches, all of it in the last one."""
    y = labels(9, seed=number)
    y[: {1: 2, 4: 5, 5: 7, WARM_UP + COUNTED - 1: 9}.get(number, 0)] = -100
    return drawn(9, 4, seed=number), y


class Scores(Net):
    def forward(self, x, y):
        return self.head(self.features(x))


class Classes(Net):
    """Some classes have no weight, so all labels of a slice may have none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.tensor([0.0, 0.5, 2.0], dtype=D))

    def forward(self, x, y):
        y = torch.where(x[:, 0] > 0.5, y.clamp(min=0), 0)
        return 0.5 * F.cross_entropy(self.head(self.features(x)), y, weight=self.weight)


class Sum(Net):
    def forward(self, x, y):
        return F.cross_entropy(self.head(self.features(x)), y.clamp(min=0), reduction="sum")


class Elements(Net):
    def forward(self, x, y):
        return 0.5 * F.mse_loss(self.head(self.features(x)), x[:, :3]) / 2


class Several(Net):
    """Means over different numbers of elements: 3 and 4 for each sample."""

    def forward(self, x, y):
        h = self.features(x)
        return F.mse_loss(self.head(h), x[:, :3]) + 0.1 * F.l1_loss(h[:, :4], x)


class SameLabels(Net):
    """Two means over the same labels, as of an auxiliary classifier."""

    def forward(self, x, y):
        h = self.features(x)
        return F.cross_entropy(self.head(h), y) + 0.3 * F.cross_entropy(self.head(h * 2), y)


class Sides(Net):
    def forward(self, x, y):
        self.kept = self.features(x)
        self.penalty = self.kept.square().mean()
        return self.head(self.kept)


class Drops(Scores):
    def features(self, x):
        return F.dropout(super().features(x), 0.4)


class Norms(Scores):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, dtype=D, momentum=momentum)

    def features(self, x):
        return self.norm(super().features(x))


class Averages(Norms):
    """Its running statistics are cumulative averages."""

    def __init__(self):
        super().__init__(momentum=None)


class Packed(Net):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True, dtype=D)

    def forward(self, x, y):
        lengths = 1 + y.clamp(min=0)
        steps = torch.stack([x * k for k in range(1, 6)], dim=1)
        packed = rnn.pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
        h, _ = rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(h.mean(1) + self.features(x))


class Replicated(Net):
    """Its second output is the same for all samples."""

    def forward(self, x, y):
        return self.head(self.features(x)), self.body.weight.square().sum() + 0 * x.detach().sum().clamp(0, 0)


class Creates(Scores):
    """Creates a leaf for each sample of its slice."""

    def features(self, x):
        states = [row.detach().clone().requires_grad_() for row in x]
        return super().features(x + 0.1 * torch.stack(states))


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x, y), y.clamp(min=0))


def loss_inside(model, x, y):
    return model(x, y)


def with_sides(model, x, y):
    return F.cross_entropy(model(x, y), y.clamp(min=0)) + 0.1 * model.penalty


def with_replicated(model, x, y):
    scores, penalty = model(x, y)
    return F.cross_entropy(scores, y.clamp(min=0)) + 0.01 * penalty


@dataclass(frozen=True)
class Case:
    """A model, and the loss of a batch."""

    make: type[nn.Module]
    loss: object
    trains: bool = True


CASES = {
    "class scores": Case(Scores, cross_entropy),
    "ignored labels": Case(Net, loss_inside),
    "class weights": Case(Classes, loss_inside),
    "masked mean": Case(Masked, loss_inside),
    "divided by a mask": Case(Divided, loss_inside),
    "sum": Case(Sum, loss_inside),
    "mean of elements": Case(Elements, loss_inside),
    "several means": Case(Several, loss_inside),
    "two losses of the same labels": Case(SameLabels, loss_inside),
    "side outputs": Case(Sides, with_sides),
    "dropout": Case(Drops, cross_entropy),
    "batch norm": Case(Norms, cross_entropy),
    "cumulative batch norm": Case(Averages, cross_entropy),
    "packed sequences": Case(Packed, cross_entropy),
    "replicated output": Case(Replicated, with_replicated),
    "created leaves": Case(Creates, cross_entropy),
    "evaluation of scores": Case(Scores, cross_entropy, trains=False),
    "evaluation of ignored labels": Case(Net, loss_inside, trains=False),
    "evaluation of a masked mean": Case(Masked, loss_inside, trains=False),
    "evaluation of the same labels": Case(SameLabels, loss_inside, trains=False),
    "evaluation of a sum": Case(Sum, loss_inside, trains=False),
}


def steps(case, reads=None):
    """Return the losses and the sums of weights after each step; count reads from step `WARM_UP` on."""
    torch.manual_seed(0)
    model = case.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for number in range(WARM_UP + COUNTED):
        x, y = batch(number)
        if reads is not None and number == WARM_UP:
            reads.found.clear()
        with torch.set_grad_enabled(case.trains):
            loss = case.loss(model, x, y)
        if case.trains:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append([loss.item(), *(one.detach().sum().item() for one in model.parameters())])
    return found


class Begins(Net):
    """Its second output is the same for all samples until one of them is large."""

    def forward(self, x, y):
        return self.head(self.features(x)), x.detach().abs().amax().clamp(min=1e6)


def beginning_to_depend():
    """Return losses; the fourth batch has a large sample."""
    torch.manual_seed(0)
    model, found = Begins(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for number in range(6):
        x, y = batch(number)
        x[0, 0] = 1e7 if number == 3 else x[0, 0]
        scores, scale = model(x, y)
        loss = F.cross_entropy(scores, y.clamp(min=0)) + 1e-7 * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def counted(_, name):
    """Run a case with a helper; return its losses and weights, its reads, its split calls, and its report."""
    with HostReads() as reads, script_with_helpers(2, SPLIT, forks=True) as account:
        found = steps(CASES[name], reads)
    return found, reads.found, account.split.total(), account.lines()


def of_script(_, path, folder):
    """Run a script with a helper; return its traceback, and how often each place has read."""
    with HostReads() as reads:
        _, _, trace = run_script(None, path, (), folder, 1, SPLIT, helpers=1)
    return trace, Counter(reads.found)
