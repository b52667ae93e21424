"""Models whose split calls are correct always, or only on the first batch, and loops that call them."""

import re
from collections import deque
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.script.call_account import IN_PARTS
from samestep.autopilot.split.call_arguments import batch_dim

D = torch.float64


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def labels(count, seed=0, classes=3):
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8, dtype=D), nn.Linear(8, 3, dtype=D)

    def features(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.features(x)), y, ignore_index=-100)


class ZeroHead(Net):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class EveryThird(ZeroHead):
    def features(self, x):
        return super().features(x) * torch.tensor([[1 + 0.1 * (row % 3)] for row in range(len(x))], dtype=D)


class Masked(Net):
    def forward(self, x, y):
        counts = (y >= 0).to(D)
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none", ignore_index=-100)
        return (each * counts).sum() * (1.0 / counts.sum())


class Divided(Masked):
    def forward(self, x, y):
        counts = (y >= 0).to(D)
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none", ignore_index=-100)
        return (each * counts).sum() / counts.sum()


class Selected(Net):
    def forward(self, x, y):
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none", ignore_index=-100)
        return each[y >= 0].mean()


class MeanOfNumbers(Net):
    def forward(self, x, y):
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none", ignore_index=-100)
        return torch.where(y >= 0, each, torch.nan).nanmean()


class SumOfSmoothed(Net):
    def forward(self, x, y):
        scores = self.head(self.features(x))
        return F.cross_entropy(scores, y, label_smoothing=0.1, reduction="sum", ignore_index=-100) / len(x)


class Penalized(Net):
    def forward(self, x, y):
        return super().forward(x, y) + 0.1 * self.body.weight.square().sum()


class Accuracy(Net):
    def forward(self, x, y):
        scores = self.head(self.features(x))
        right = (scores.argmax(1) == y).sum()
        return F.cross_entropy(scores, y, ignore_index=-100), right


class Gated(Net):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(1e-9, dtype=D))

    def features(self, x):
        h = super().features(x)
        return h + self.gate * h.mean(0)


class Hardest(Net):
    def forward(self, x, y):
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()


class TwoWeights(Net):
    def forward(self, x, y):
        h = self.features(x)
        return F.cross_entropy(self.head(h), y, ignore_index=-100) + 0.1 * h.square().mean()


class Clamped(Net):
    def forward(self, x, y):
        counts = (y >= 0).to(D)
        each = F.cross_entropy(self.head(self.features(x)), y, reduction="none", ignore_index=-100)
        return (each * counts).sum() / counts.sum().clamp(min=2)


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1e-3)


class OwnBackward(Net):
    def features(self, x):
        return Whole.apply(super().features(x))


class CountsTo(Net):
    """Compares samples after a thousand calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def features(self, x):
        self.calls += 1
        h = super().features(x)
        return h - h.mean(0) if self.calls > 1000 else h


class CountsInTensor(CountsTo):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def features(self, x):
        self.steps += 1
        h = Net.features(self, x)
        return h - h.mean(0) if self.steps > 1000 else h


class RunningMaximum(Net):
    """Writes to a buffer, whose value the first batches do not change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.full((), 100.0, dtype=D))

    def features(self, x):
        with torch.no_grad():
            self.peak.copy_(torch.maximum(self.peak, x.abs().max()))
        return super().features(x / self.peak)


class Deque(Net):
    def __init__(self):
        super().__init__()
        self.recent = deque(maxlen=2)

    def features(self, x):
        h = super().features(x)
        self.recent.append(h.mean(0).detach())
        return h + 0.1 * self.recent[-1]


class Renormalized(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8, max_norm=0.5, dtype=D)

    def features(self, x):
        return super().features(x) + self.table((x[:, 0].abs() * 4).long().clamp(max=8))


class NoDouble(nn.Module):
    """A model with a kernel that has no double precision."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if x.dtype == D:
            raise RuntimeError("not implemented for 'Double'")
        return self.layer(x)


def under_autocast():
    """Return the outputs of calls within one block of autocast, which keeps the cast weights."""
    torch.manual_seed(0)
    model, x = NoDouble(), drawn(9, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        return torch.stack([model(x).float() for _ in range(2)]).flatten().tolist()


def dropping_under_autocast():
    """Return the outputs of calls that draw: only the first casts the weights, and not within its check."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), drawn(9, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        return torch.stack([model(x).float() for _ in range(2)]).flatten().tolist()


class DeviceFails(nn.Module):
    """A model whose kernel fails on the device for the values of a check."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if x.dtype == D:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return self.layer(x)


def on_failing_device():
    DeviceFails()(torch.ones(9, 4))


_OF_PART = re.compile(r"\S+ in \S+ at ")


def on_workers(_, size, options, work, *args):
    """Run `work` with helpers; return its result, the numbers of split and unsplit calls, and the report.

    Calls of parts of a call that is unsplit are left out.
    """
    with script_with_helpers(size, options, forks=True) as account:
        results = work(*args)
    lines = [line.replace(IN_PARTS, "") for line in account.lines() if not _OF_PART.match(line)]
    return results, _whole(account.split), _whole(account.unsplit), lines


def parts_on_workers(_, size, options, work, *args):
    """Run `work` with helpers; return its result, and the numbers of split and unsplit calls of parts."""
    with script_with_helpers(size, options, forks=True) as account:
        results = work(*args)
    return results, *(calls.total() - _whole(calls) for calls in (account.split, account.unsplit))


def _whole(calls):
    return sum(number for what, number in calls.items() if not _OF_PART.match(what))


def step(model, optimizer, x):
    """Make a step with the mean square of the outputs; return this loss."""
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def batch(number, count=9):
    """Return a batch; the first batches have no ignored labels, and later ones in their first samples."""
    y = labels(count, seed=number)
    y[: max(0, number - 1) * 2] = -100
    return drawn(count, 4, seed=number), y


def trained(make):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    results = []
    for number in range(4):
        x, y = batch(number)
        if make is Hardest:
            y = y.clamp(min=0)
        result = model(x, y)
        loss = result[0] if isinstance(result, tuple) else result
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            again = model(x, y)
        results += [loss.item(), float((again[0] if isinstance(again, tuple) else again).item())]
        results += [float(result[1])] if isinstance(result, tuple) else []
    return results


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.rnn, self.out = nn.Dropout(0.3), nn.GRU(4, 6, dtype=D), nn.Linear(6, 3, dtype=D)

    def forward(self, x):
        return self.out(self.rnn(self.drop(x))[0])


def along_time(steps):
    torch.manual_seed(0)
    model = TimeFirst()
    results = []
    for number, (time, count) in enumerate(steps):
        out = model(drawn(time, count, 4, seed=number))
        results += [out.view(-1, 3).square().mean().item(), out.stride()]
    return results


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=True, dtype=D), nn.Linear(6, 3, dtype=D)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(h.mean(1)), h


def packed():
    torch.manual_seed(0)
    model = Packed()
    results = []
    for lengths in ([5] * 6, [5, 5, 5, 4, 4, 3], [5, 2, 2, 2, 2, 1]):
        scores, h = model(drawn(6, 5, 4), torch.tensor(lengths))
        results += [scores.square().sum().item(), h.square().sum().item(), h.shape[1]]
    return results


class MaskedLater(Packed):
    """Ignores the padding after some calls; before, the time steps are independent of each other."""

    def __init__(self):
        super().__init__()
        self.body, self.calls = nn.Linear(4, 6, dtype=D), 0

    def forward(self, x, lengths):
        self.calls += 1
        h = torch.tanh(self.body(x))
        if self.calls > 3:
            alive = torch.arange(h.size(0))[None] < lengths[:, None]
            h = h * alive.T[..., None]  # fails where one of them is a slice
        return self.out(h)


def masked_later():
    """Return outputs for batches whose numbers of time steps and of samples are equal."""
    torch.manual_seed(0)
    model, lengths = MaskedLater(), torch.tensor([6, 5, 2, 3, 1, 4])
    return [model(drawn(6, 6, 4, seed=number), lengths).square().sum().item() for number in range(6)]


@dataclass
class Config:
    centered: bool = False


class ByConfig(Net):
    def __init__(self):
        super().__init__()
        self.config, self.drop = Config(), nn.Dropout(0.0)

    def features(self, x):
        h = self.drop(super().features(x))
        return h - h.mean(0) if self.config.centered else h


def switched():
    torch.manual_seed(0)
    model = ByConfig()
    results = []
    for number in range(6):
        model.config.centered = number >= 4
        model.drop.p = 0.5 * (number in (2, 3))
        results.append(model(*batch(0)).item())
    return results


class Surprises(Net):
    """Compares samples if they are large, which is visible neither to guards nor in its operations."""

    def features(self, x):
        h = super().features(x)
        return h - h.mean(0) * float(abs(x.numpy()).max() > 1e6)


def surprised():
    """Return outputs, of which the fourth and later ones are those of a whole batch only."""
    torch.manual_seed(0)
    model = Surprises()
    return [
        model(drawn(9, 4, seed=number) * (1e7 if number > 2 else 1), labels(9)).item() for number in range(6)
    ]


def surprised_at_two_sizes():
    """Return outputs, of which two are those of a whole batch only, with a new size between them."""
    torch.manual_seed(0)
    model, found = Surprises(), []
    for number, count in enumerate((9, 9, 9, 9, 8, 9)):
        x = drawn(count, 4, seed=number) * (1e7 if number in (3, 5) else 1)
        found.append(model(x, labels(count)).item())
    return found


def of_single_samples():
    """Return outputs for batches of one sample, and for a batch of several."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).double()
    return [layers(drawn(count, 4, seed=count)).sum().item() for count in (1, 1, 1, 9)]


def kept_unsplit():
    torch.manual_seed(0)
    return batch_dim(Net(), dim=None)(*batch(0)).item()


def of_batch_norm():
    """Return outputs of a model with a running mean of almost zero, as in networks of inverted residuals."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()]
    model = nn.Sequential(*layers)
    return [model(drawn(9, 4, seed=number).float()).sum().item() for number in range(3)]


class FailsForFew(nn.Module):
    """A slice of two samples fails before its flattened dropout, one of three after it."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8).double(), nn.Linear(8, 4).double()

    def forward(self, x):
        h = self.one(x)
        if len(h) == 2:
            h = h.view(3, -1, 8)
        h = F.dropout(h[:, None].expand(-1, 3, -1).flatten(0, 1), 0.5).unflatten(0, (len(x), 3)).mean(1)
        return self.two(h - h.mean(0))


def failing_for_few():
    torch.manual_seed(0)
    return FailsForFew()(drawn(5, 4)).flatten().tolist()


class ReadsThreeRows(nn.Module):
    """Fails for a slice of two rows, which is that of the last rank."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1).double())

    def forward(self, x):
        return torch.stack([x[0] * self.scale, x[1], x[2]])


def of_rows_by_number():
    """Return outputs for five rows, of which forward reads three by their number."""
    model = ReadsThreeRows()
    return [model(drawn(5, 1, seed=number)).sum().item() for number in range(2)]
