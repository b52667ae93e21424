"""Containers and objects whose classes have methods of their own are read and restored as they are stored."""

import random
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samestep.hooks.raw_containers import contents_of, fields_of
from support.tiers import mostly_long

SEEDS = mostly_long(range(120), [*map(str, range(12))])
CHANGING = ("doubles", "counts", "refuses")
"""The effects of a method: it changes the values that it returns or stores, counts its calls, or raises."""
MAPPING_METHODS = (
    *("__getitem__", "__setitem__", "__iter__", "__len__", "__contains__", "__bool__", "__eq__", "keys"),
    *("values", "items", "get", "update", "clear", "copy", "__copy__", "setdefault"),
)
LIST_METHODS = (
    *("__getitem__", "__setitem__", "__iter__", "__len__", "__contains__", "__bool__", "__eq__"),
    *("append", "extend", "clear", "copy", "__copy__"),
)
OBJECT_METHODS = ("__getattr__", "__setattr__", "__len__", "__bool__", "__eq__", "__copy__", "__dir__")


def method_of(base, name, does):
    """Return a method that calls that of the base class, if there is one, and does something more."""
    original = getattr(base, name, None)

    def method(self, *args, **kwargs):
        if does == "refuses" or original is None:
            raise AttributeError if name == "__getattr__" else RuntimeError(name)
        type(self).calls += 1
        result = original(self, *args, **kwargs)
        return 2 * result if does == "doubles" and type(result) is float else result

    return method


def container_of(seed):
    """Return a container or an object of a random class that holds the number 0.5."""
    chosen = random.Random(seed)
    base = chosen.choice([dict, OrderedDict, defaultdict, list, deque, object])
    is_mapping = issubclass(base, dict)
    names = MAPPING_METHODS if is_mapping else OBJECT_METHODS if base is object else LIST_METHODS
    own = {"calls": 0}
    for name in chosen.sample(names, 4):
        own[name] = method_of(base, name, chosen.choice(CHANGING))
    if base is object and chosen.random() < 0.5:
        own["__slots__"] = ("__gain", "gain")
    kind = type(f"Own{base.__name__.title()}", (base,), own)
    made = kind.__new__(kind)
    if base is object:
        object.__setattr__(made, "gain", 0.5)
    elif is_mapping:
        base.__setitem__(made, "gain", 0.5)
    else:
        base.append(made, 0.5)
    return base, made


class Scaled(nn.Module):
    """Multiplies by a number that it reads from a container as it is stored."""

    def __init__(self, base, kept):
        super().__init__()
        self.layer, self.base, self.kept = nn.Linear(5, 4), base, kept

    def forward(self, x):
        if self.base is object:
            gain = object.__getattribute__(self.kept, "gain")
        else:
            gain = self.base.__getitem__(self.kept, "gain" if issubclass(self.base, dict) else 0)
        return gain * self.layer(x)


def train(seed):
    """Return the losses, what the container stores afterwards, and the calls of its own methods."""
    torch.manual_seed(seed)
    base, kept = container_of(seed)
    model = Scaled(base, kept).double()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(7, 5, dtype=torch.float64)), torch.randint(0, 4, (7,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    stored = None if base is object else contents_of(kept)
    return losses, stored, fields_of(kept), type(kept).calls


@pytest.mark.parametrize("seed", SEEDS)
def test_a_container_with_methods_of_its_own_is_as_under_python(run, seed):
    """Only this finds a walker that calls a method of the user's class, which may do anything."""
    (losses, *rest), *_ = run(2, train, seed)
    serial, *serial_rest = train(seed)

    assert losses == pytest.approx(serial, rel=0, abs=1e-12)
    assert rest == serial_rest


@dataclass
class Scores:
    """An output whose constructor computes a further tensor."""

    logits: torch.Tensor

    def __post_init__(self):
        self.chances = self.logits.softmax(-1)


class Named(dict):
    """An output with a field beside its items."""


class Unhashed(type):
    def __eq__(cls, other):
        return cls is other


class Kept(metaclass=Unhashed):
    gain = 0.5


def scores(x):
    return Scores(x)


def named(x):
    found = Named(logits=x)
    found.chances = x.softmax(-1)
    return found


class Computes(nn.Module):
    """Returns an output with tensors beside its parts, and keeps it."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make, self.kept = nn.Linear(5, 4), make, Kept()

    def forward(self, x):
        self.last = self.make(self.kept.gain * self.layer(x))
        return self.last


def outputs_of(make):
    """Return a loss of what an output holds beside its parts, and the shapes of what the model keeps."""
    torch.manual_seed(0)
    model, found = Computes(make).double(), []
    for _ in range(3):
        model.zero_grad()
        outputs = model(torch.randn(7, 5, dtype=torch.float64))
        loss = outputs.chances.square().sum()
        loss.backward()
        found += [loss.item(), model.layer.weight.grad.sum().item(), *model.last.chances.shape]
    return found


@pytest.mark.parametrize("make", [scores, named])
def test_tensors_beside_the_parts_of_an_output_are_those_of_the_batch(run, make):
    found, *_ = run(2, outputs_of, make)
    assert found == pytest.approx(outputs_of(make), rel=1e-9)


class Hidden(nn.Module):
    """Normalizes, multiplies by a number, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.norm, self.rate, self.calls = nn.BatchNorm1d(4), 1.0, 0

    def forward(self, x):
        self.calls += 1
        return self.rate * self.norm(x)


class Hides(nn.Module):
    """Keeps a module in a list, so that its weights are not among those of this one."""

    def __init__(self):
        super().__init__()
        self.layer, self.hidden = nn.Linear(5, 4), [Hidden()]

    def forward(self, x):
        return self.hidden[0](self.layer(x))


def train_with_hidden():
    """Return losses, and the state of the hidden module, whose number and mode change between calls."""
    torch.manual_seed(0)
    model, found = Hides().double(), []
    hidden = model.hidden[0].double()
    for step in range(8):
        hidden.rate = 1.0 if step < 4 else 2.0
        hidden.train(step < 6)
        loss = F.cross_entropy(model(torch.randn(7, 5, dtype=torch.float64)), torch.randint(0, 4, (7,)))
        loss.backward()
        found += [loss.item(), hidden.norm.running_mean.sum().item(), hidden.calls]
    return found


def test_a_module_in_a_list_is_as_under_python(run):
    found, *_ = run(2, train_with_hidden)
    assert found == pytest.approx(train_with_hidden(), rel=1e-9)


class Charts(nn.Module):
    """Keeps an object of a library, to which calls add a node, a tensor in it, and a weight."""

    def __init__(self):
        super().__init__()
        self.layer, self.chart = nn.Linear(5, 4), nx.Graph()
        self.chart.graph["total"] = torch.zeros(1)
        self.chart.weight = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x):
        self.chart.add_node(len(self.chart))
        self.chart.graph["total"] += 1
        with torch.no_grad():
            self.chart.weight += 1
        return self.layer(x)


def train_with_chart():
    """Return losses, and what the calls have left in the object."""
    torch.manual_seed(0)
    model, found = Charts().double(), []
    for _ in range(4):
        loss = F.cross_entropy(model(torch.randn(7, 5, dtype=torch.float64)), torch.randint(0, 4, (7,)))
        loss.backward()
        left = model.chart.graph["total"].item(), model.chart.weight.item(), len(model.chart)
        found += [loss.item(), *left]
    return found


def test_an_object_of_a_library_is_as_under_python(run):
    """Each comparison of a check had left its changes in such an object."""
    found, *_ = run(2, train_with_chart)
    assert found == pytest.approx(train_with_chart(), rel=1e-9)
