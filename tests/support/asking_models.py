"""Models whose forward asks for something of what they hold, and the changes that a script makes of it."""

import torch
from torch import nn
from torch.nn import functional as F

from support.split_check_models import drawn, labels

D = torch.float64


class Asks(nn.Module):
    """Compares its samples with each other if `asked` is true of it."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked
        self.body, self.again, self.head = (nn.Linear(*sizes, dtype=D) for sizes in ((4, 8), (8, 8), (8, 3)))
        self.register_buffer("mean", None)
        self.register_buffer("flags", torch.zeros(3, dtype=torch.bool))
        self.bank = [drawn(20, 4), drawn(20, 4)]
        self.head.weight.requires_grad_(False)

    def forward(self, x):
        features = self.again(torch.tanh(self.body(x)))
        if self.asked(self):
            features = features - features.mean(0)
        return self.head(features)


def is_frozen(model):
    return not model.again.weight.requires_grad


def freeze(model):
    model.again.weight.requires_grad_(False)
    model.head.weight.requires_grad_(True)


def has_mean(model):
    return model.mean is not None


def set_mean(model):
    model.mean = drawn(20)


def has_long_bank(model):
    return len(model.bank[0]) > 30


def lengthen(model):
    model.bank[0] = drawn(40, 4)


def has_one_bank(model):
    return model.bank[0] is model.bank[1]


def share_bank(model):
    model.bank[1] = model.bank[0]


def has_columns(model):
    return not model.again.weight.is_contiguous()


def transpose(model):
    model.again.weight.data = model.again.weight.data.t().contiguous().t()


def has_flag(model):
    return bool(model.flags[1])


def set_flag(model):
    model.flags.data[1] = True


def is_large(model):
    return model.again.weight.norm() > 20


def enlarge(model):
    model.again.weight.data *= 20


CHANGES = [
    *((is_frozen, freeze), (has_mean, set_mean), (has_long_bank, lengthen), (has_one_bank, share_bank)),
    *((has_columns, transpose), (has_flag, set_flag), (is_large, enlarge)),
]
"""Pairs of a question of a forward, and a change of the model after which its answer is another."""


def changed_later(asked, change, *, compiled=False):
    """Return the losses of a training in which a script changes what a model holds."""
    torch.manual_seed(0)
    model = Asks(asked)
    call = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for number in range(6):
        if number == 3:
            change(model)
        loss = F.cross_entropy(call(drawn(7, 4, seed=number)), labels(7, seed=number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class AsksForSizes(nn.Module):
    """Compares its samples with each other if `asked` is true of its input."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked
        self.body, self.head = nn.Linear(4, 8, dtype=D), nn.Linear(8, 3, dtype=D)

    def forward(self, x):
        features = torch.tanh(self.body(x))
        if self.asked(x):
            features = features - features.mean(0)
        return self.head(features).mean(1)


def is_long(x):
    return 2 * x.size(1) > 2 * LONGEST


def is_of_nine(x):
    return x.size(0) == 9


LONGEST = 8
SIZES = [
    (is_long, [(5, 3), (5, 4), (5, 5), (5, 6), (5, 9), (5, 9), (5, 10)]),
    (is_of_nine, [(5, 3), (6, 3), (7, 3), (8, 3), (10, 3), (11, 3), (9, 3), (12, 3), (9, 3)]),
]
"""Pairs of a question of a forward about its input, and the sizes of the calls."""


class AsksForState(AsksForSizes):
    """Keeps the features of its last call, and compares with their mean if `asked` is true of them."""

    state = None

    def forward(self, x):
        features = torch.tanh(self.body(x))
        if self.state is not None and self.asked(self.state):
            features = features - self.state.mean(0)
        self.state = features.detach()
        return self.head(features).mean(1)


def of_sizes(asked, sizes, make=AsksForSizes):
    """Return the losses of a training whose calls have other sizes."""
    torch.manual_seed(0)
    model = make(asked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for number, (count, length) in enumerate(sizes):
        loss = F.cross_entropy(model(drawn(count, length, 4, seed=number)), labels(count, seed=number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
