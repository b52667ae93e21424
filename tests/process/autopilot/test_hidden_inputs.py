"""The values and the classes of arguments, and the modes around a call, guard the way to split it."""

import functools
from enum import Enum

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Image(Tensor):
    """A class of tensors, as torchvision has."""


class Kind(Enum):
    FIRST, SECOND = 1, 2


ASKED = {
    "gradient": (lambda x, _: x.requires_grad, None, None),
    "layout": (lambda x, _: x.stride(0) == 1, None, None),
    "class of tensor": (lambda x, _: isinstance(x, Image), None, None),
    "default type": (lambda *_: torch.get_default_dtype() == torch.float16, None, None),
    "flag": (lambda _, given: given is True, 1, True),
    "fraction": (lambda _, given: isinstance(given, float), 1, 1.0),
    "presence": (lambda _, given: given is not None, None, []),
    "container": (lambda _, given: isinstance(given, dict), [], {}),
    "function in C": (lambda _, given: given is torch.tanh, torch.relu, torch.tanh),
    "class": (lambda _, given: given is nn.Softmin, nn.Softmax, nn.Softmin),
    "data type": (lambda _, given: given is torch.float32, torch.float64, torch.float32),
    "slice": (lambda _, given: given.start == 1, slice(0, 2), slice(1, 2)),
    "bytes": (lambda _, given: given == b"b", b"a", b"b"),
    "enumeration": (lambda _, given: given is Kind.SECOND, Kind.FIRST, Kind.SECOND),
    "depth": (lambda _, given: given[0][0][0][0][0], [[[[[False]]]]], [[[[[True]]]]]),
    "long list": (lambda _, given: given[-1] == 1, [0] * 100, [0] * 99 + [1]),
    "tensor of a number": (lambda _, given: given[0] > 0, torch.zeros(1), torch.ones(1)),
    "array": (lambda _, given: given[0] > 0, np.zeros(3), np.ones(3)),
    "type of array": (lambda _, given: given.dtype == np.int64, np.zeros(40), np.zeros(40, dtype=np.int64)),
}
"""A property of an argument, and two values of it, of which only the second lets forward compare samples."""


class ComparesIf(nn.Module):
    """Compares its samples if it is asked to."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.name = nn.Linear(5, 4, dtype=torch.float64), name

    def forward(self, x, given):
        scores = self.layer(x).as_subclass(Tensor)
        return scores / scores.norm() if ASKED[self.name][0](x, given) else scores


SECOND_FORMS = {
    "gradient": Tensor.requires_grad_,
    "layout": lambda x: x.t().contiguous().t(),
    "class of tensor": lambda x: x.as_subclass(Image),
}


def with_second_values():
    """Return the losses of each model with the first value and then the second, in turn."""
    models, losses = {name: ComparesIf(name) for name in ASKED}, []
    for step in range(4):
        for name, model in models.items():
            x, given = drawn(8, 5, seed=step), ASKED[name][1 + step % 2]
            if step % 2:
                x = SECOND_FORMS.get(name, Tensor.contiguous)(x)
            if name == "default type":
                torch.set_default_dtype(torch.float16 if step % 2 else torch.float32)
            losses.append(model(x, given).square().mean().item())
            torch.set_default_dtype(torch.float32)
    return losses


def test_a_call_is_checked_for_each_form_of_its_arguments(compared):
    split, unsplit, lines = compared(with_second_values)
    assert split > len(ASKED), lines
    assert unsplit >= 2 * len(ASKED)


class Applies(nn.Module):
    """Applies what it is given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 4, dtype=torch.float64)

    def forward(self, x, function):
        return self.layer(function(x))


def with_given(make):
    """Train a model, and what it is given; return the losses, and a sum of the latter's state."""
    model, given = Applies(), make()
    is_module = isinstance(given, nn.Module)
    optimizer = torch.optim.SGD([*model.parameters(), *(given.parameters() if is_module else [])], lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        function = given if is_module else functools.partial(consumed, values=given)
        loss = F.mse_loss(model(drawn(8, 5, seed=step), function), drawn(8, 4, seed=9))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [*given.state_dict().values()] if is_module else [torch.tensor([*given], dtype=torch.float64)]
    return [*losses, *(values.double().sum().item() for values in state)]


def consumed(x, values):
    """Use a value up, or add to values."""
    if isinstance(values, np.ndarray | bytearray):
        values[0] += 1
        return x
    return x * next(values)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(nn.Linear, 5, 5, dtype=torch.float64),
        functools.partial(nn.BatchNorm1d, 5, dtype=torch.float64),
        functools.partial(iter, [1.0, 2.0, 3.0, 4.0]),
        functools.partial(np.zeros, 2),
        functools.partial(bytearray, 2),
    ],
)
def test_a_call_that_changes_its_arguments_is_that_of_one_worker(compared, make):
    split, unsplit, _ = compared(seeded, make)
    assert (split, unsplit) == (0, 3)


def seeded(make):
    torch.manual_seed(1)
    return with_given(make)


class ScoresBy(Applies):
    """Computes its loss by what it is given."""

    def forward(self, x, function, labels):
        return function(self.layer(x), labels)


def with_weights_of_classes():
    """Train a model with a loss whose weights of classes change."""
    model, losses = ScoresBy(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        criterion = nn.CrossEntropyLoss(weight=torch.arange(1.0 + step, 5.0 + step, dtype=torch.float64))
        optimizer.zero_grad()
        loss = model(drawn(8, 5, seed=step), criterion, torch.arange(8) * step % 4)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_call_that_is_given_a_loss_with_weights_of_classes_is_split(compared):
    split, unsplit, _ = compared(with_weights_of_classes)
    assert (split, unsplit) == (3, 0)


class ReadsGradients(Applies):
    """Scales its scores by the gradient of its weight."""

    def forward(self, x):
        scores = self.layer(x)
        return scores if self.layer.weight.grad is None else scores * self.layer.weight.grad.norm()


class ReadsMark(Applies):
    """Compares its samples if its weight is marked."""

    def forward(self, x):
        scores = self.layer(x)
        return scores / scores.norm() if getattr(self.layer.weight, "mark", 0) == 2 else scores


class ReadsSeed(Applies):
    """Scales its scores by a number of the seed."""

    def forward(self, x):
        return self.layer(x) * (torch.initial_seed() % 7)


def accumulated(make):
    model, losses = make(), []
    for step in range(4):
        torch.manual_seed(step)
        model.layer.weight.mark = step
        loss = model(drawn(8, 5, seed=step)).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("make", "counts"), [(ReadsGradients, (0, 4)), (ReadsMark, (3, 1)), (ReadsSeed, (0, 4))]
)
def test_a_forward_that_reads_state_beside_values_equals_one_worker(compared, make, counts):
    split, unsplit, lines = compared(accumulated, make)
    assert split >= counts[0], lines
    assert bool(unsplit) == bool(counts[1]), lines


class Scaled(Applies):
    """Reads the sign of a zero."""

    def forward(self, x, number, epoch):
        return self.layer(x) * np.copysign(epoch, number)


def of_zeros():
    model = Scaled()
    steps = enumerate([0.0, -0.0] * 12)
    return [model(drawn(8, 5), number, 1000 + step // 2).sum().item() for step, number in steps]


def test_the_sign_of_a_zero_is_sent(compared):
    compared(of_zeros)


class ByRow(nn.Module):
    """Multiplies each sample by the number in its row of a table, of the module or among the arguments."""

    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.read, self.attribute = nn.Linear(5, 4, dtype=torch.float64), read, None
        self.register_buffer("numbers", torch.full((24,), 5))
        self.register_buffer("flags", torch.ones(24, 4, dtype=torch.bool))

    def forward(self, x, given):
        return self.layer(x) * self.read(self, given, len(x))


def offsets_of(numbers):
    return torch.cat([torch.zeros(1, dtype=torch.int64), numbers[:20].cumsum(0)])


TABLES = {
    "integers": (lambda model, _, count: model.numbers[:count, None], lambda _: None),
    "flags": (lambda model, _, count: model.flags[:count], lambda _: None),
    "attribute": (lambda model, _, count: model.attribute[:count, None], lambda _: None),
    "argument": (lambda _, given, count: given[:count, None], lambda numbers: numbers),
    "offsets": (lambda _, given, count: given.diff()[:count, None], offsets_of),
    "array": (
        lambda _, given, count: torch.tensor(given[:count, None]),
        lambda numbers: numbers[:20].numpy(),
    ),
    "texts": (
        lambda _, given, count: torch.tensor([[len(text)] for text in given[:count]]),
        lambda numbers: ["abcdefg"[:number] for number in numbers[:20].tolist()],
    ),
}
"""How a forward reads a table, and how it is made of numbers of rows: more rows than samples."""


def with_rows_that_become_unequal(name):
    read, given = TABLES[name]
    model, losses = ByRow(read), []
    for step in range(6):
        numbers = torch.arange(24) % 7 + 1 if step >= 3 else torch.full((24,), 5)
        model.numbers.copy_(numbers)
        model.flags.copy_(torch.arange(4) < numbers[:, None])
        model.attribute = numbers.double()
        losses.append(model(drawn(20, 5, seed=step), given(numbers)).square().mean().item())
    return losses


@pytest.mark.parametrize("name", TABLES)
def test_calls_that_read_a_table_of_rows_are_as_on_one_worker(compared, name):
    """Only this catches slices that take the first rows, while all rows are equal in the checked calls."""
    compared(with_rows_that_become_unequal, name)
