"""Arguments with objects that helpers make with difficulty, or not at all, cost no helper."""

import importlib
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from samestep.autopilot.helpers.helper_processes import Helpers


class Versioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x, version):
        return self.one(x) * version[0]


class Named(Versioned):
    def forward(self, x, kind):
        return self.one(x) * (3 if kind.name == "A" else 1)


class Version(tuple):
    """A tuple whose class requires other arguments than it stores."""

    def __new__(cls, major, minor):
        return super().__new__(cls, (major, minor))


class Attends(nn.Module):
    """Attends to earlier places only, if the context is its input itself."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4, dtype=torch.float64)
        for parameter in self.parameters():
            parameter.data = torch.linspace(-1, 1, parameter.numel()).double().view(parameter.shape)

    def forward(self, x, context):
        scores = self.query(x) @ context.mT
        return (scores.tril() if context is x else scores) @ context


def attended():
    model, found = Attends(), []
    x = torch.linspace(-2, 2, 120, dtype=torch.float64).sin().view(6, 5, 4).requires_grad_()
    for context in (x, x.detach().clone(), x, x):
        outputs = model(x, context)
        outputs.square().sum().backward()
        found += [*outputs.flatten().tolist(), *x.grad.flatten().tolist()]
    return found


class Remembers(Attends):
    """Returns its last outputs again for the same input, and attends otherwise if it gets its weight."""

    def forward(self, x, weight=None):
        if x is getattr(self, "last", None):
            return self.outputs.detach() * 2
        self.last, self.outputs = x, self.query(x) * (3 if weight is self.query.weight else 1)
        return self.outputs


def remembered():
    model, found = Remembers(), []
    for number in range(3):
        x = torch.linspace(-2, number, 24, dtype=torch.float64).view(6, 4)
        for weight in (torch.ones(4, 4), None):
            found += model(x, weight).flatten().tolist()
        found += model(x + 1, model.query.weight).flatten().tolist()
    return found


class Follows(Attends):
    """Lets its input get a gradient, as models of forces do."""

    def forward(self, x):
        return self.query(x.requires_grad_()).tanh()


def followed():
    model, found = Follows(), []
    for number in range(3):
        x = torch.linspace(-2, number, 24, dtype=torch.float64).view(6, 4)
        found += torch.autograd.grad(model(x).sum(), x)[0].flatten().tolist()
    return found


class Retrieves(Attends):
    """Compares its first argument, whose rows are samples, with all rows of the second."""

    def forward(self, queries, keys):
        return self.query(queries).tanh() @ keys.mT


def retrieved():
    model, encoder, found = Retrieves(), Follows(), []
    for number in range(4):
        x = torch.linspace(-2, number, 32, dtype=torch.float64).sin().view(8, 4)
        rows = encoder.query(x)
        (model(rows, rows) * x.sum()).square().mean().backward()
        found += model.query.weight.grad.flatten().tolist() + encoder.query.weight.grad.flatten().tolist()
    return found


def changed_in_place():
    """Change gradients as scripts of meta-learning do; torch allows it for none that is a view."""
    model, found = nn.Conv1d(4, 4, 1, dtype=torch.float64), []
    rate = torch.ones((), dtype=torch.float64, requires_grad=True)
    for parameter in model.parameters():
        parameter.data = torch.linspace(-1, 1, parameter.numel()).double().view(parameter.shape)
    for number in range(3):
        x = torch.linspace(-2, number, 48, dtype=torch.float64).view(6, 4, 2)
        for gradient in torch.autograd.grad(model(x).square().mean(), [*model.parameters()]):
            found += gradient.detach_().mul_(rate * 2).flatten().tolist()
    return found


def traced_call():
    """Call a module whose forward torch has compiled from text: its function has no name of a module."""
    model, found = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 2, dtype=torch.float64), nn.Tanh())), []
    for parameter in model.parameters():
        parameter.data = torch.linspace(-1, 1, parameter.numel()).double().view(parameter.shape)
    for number in range(3):
        found += model(torch.linspace(-2, number, 24, dtype=torch.float64).view(6, 4)).flatten().tolist()
    return found


class Scales(Attends):
    def forward(self, x):
        return self.query(x) * getattr(x, "scale", 1)


def scaled():
    model, found = Scales(), []
    for scale in (1, 2, 3, 3):
        x = torch.linspace(-2, 1, 24, dtype=torch.float64).view(6, 4)
        if scale > 1:
            x.scale = scale
        found += model(x).flatten().tolist()
    return found


def called(version, kind=Versioned):
    """Return the outputs of three calls with helpers, and how often these were started again."""
    model, restarts = kind(), []
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        patch.setattr(Helpers, "restart", lambda *_: restarts.append(1))
        return [model(torch.ones(6, 3), version).tolist() for _ in range(3)], len(restarts)


def called_with_system():
    return called(sys.version_info)


def called_with_own():
    return called(Version(3, 11))


class Kind(Enum):
    PLAIN = 1
    TWICE = 2


@dataclass
class Samples:
    rows: torch.Tensor


class Recognizes(Versioned):
    """Asks for the identity and the class of its arguments, which a helper makes anew."""

    def forward(self, samples, kind):
        rows = samples.rows * 3 if isinstance(samples, Samples) else samples
        return self.one(rows) if kind is Kind.PLAIN else 2 * self.one(rows)


def recognized_by_two():
    models, found = (Recognizes(), Recognizes()), []
    for model in models:
        for parameter in model.parameters():
            parameter.data = torch.linspace(-1, 1, parameter.numel()).double().view(parameter.shape)
    for count in (8, 12, 8):
        rows = torch.linspace(-2, 2, 3 * count, dtype=torch.float64).view(count, 3)
        for model, kind in zip(models, Kind, strict=True):
            found += [*model(Samples(rows), kind).flatten().tolist(), *model(rows, kind).flatten().tolist()]
    return found


def called_with_member():
    """Give a member of an enumeration in a module beside the script, which helpers cannot import."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        (Path(folder) / "kinds_beside.py").write_text("import enum\nKind = enum.Enum('Kind', 'A')\n")
        patch.syspath_prepend(folder)
        return called(importlib.import_module("kinds_beside").Kind.A, Named)


@pytest.mark.parametrize(
    ("work", "is_split"), [(called_with_system, True), (called_with_own, False), (called_with_member, True)]
)
def test_an_object_that_cannot_be_made_again_costs_no_helper(run, work, is_split):
    """Only this finds a message that a helper cannot read, at which it dies."""
    (outputs, restarts), *_, lines = run(2, work)
    assert (outputs, restarts) == ([[[6.0] * 3] * 6] * 3, 0)
    assert (
        any(line.startswith(("Versioned at", "Named at")) and "calls split" in line for line in lines)
        == is_split
    )


def test_a_tensor_that_is_given_twice_is_one_tensor_in_a_slice(compared):
    assert compared(attended)[:2] == [4, 0]


def test_two_models_recognize_the_classes_of_their_arguments(compared):
    """Only this finds a model whose mirror has other classes of the script than its arguments."""
    assert compared(recognized_by_two)[:2] == [12, 0]


def test_a_module_recognizes_a_tensor_that_it_holds(compared):
    compared(remembered)


def test_an_input_of_which_a_forward_lets_autograd_follow_the_use_gets_its_gradient(compared):
    compared(followed)


def test_a_tensor_with_attributes_of_the_script_is_not_sliced(compared):
    assert compared(scaled)[0] == 1


@pytest.mark.parametrize(("work", "counts"), [(retrieved, 4), (changed_in_place, 3), (traced_call, 3)])
@pytest.mark.parametrize("size", [2, 3])
def test_arguments_at_two_places_views_and_traced_modules(compared, work, counts, size):
    """Only these find a graph that keeps the memory of a message, and a gradient that is a view."""
    split, _, lines = compared(work, size=size)
    assert split >= counts, lines
