"""Values that a forward reads through decorators, plain objects and weak references reach helpers.

Each case reads a factor that doubles after the calls have been split; a helper that misses it computes with
the old one.
"""

import os
import sys
import warnings
import weakref
from collections import defaultdict
from configparser import ConfigParser
from functools import cached_property, partialmethod, singledispatch
from queue import Queue
from threading import Event, Lock
from types import MethodType, ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from samestep.autopilot.once_script import script_with_helpers
from support import factors
from support.script_runner import ALL_SPLIT

FACTOR = 1.0
CALLS = 0
STEPS = 8


class Scaled(nn.Module):
    """A linear layer whose outputs pass through a function."""

    def __init__(self, scale):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.scale = scale

    def forward(self, x):
        return self.scale(self.linear(x))


@torch.no_grad()
def read_factor():
    return FACTOR


@torch.autocast("cpu", enabled=False)
def decorated(x):
    return x * read_factor()


class Decorated(Scaled):
    """Calls a function that two decorators of torch wrap."""

    def forward(self, x):
        return decorated(self.linear(x))


@torch.compile(backend="eager")
def compiled(x):
    return x * FACTOR


class Compiled(Scaled):
    """Calls a compiled function by its name."""

    def forward(self, x):
        return compiled(self.linear(x))


@singledispatch
def by_type(x):
    raise TypeError(type(x))


@by_type.register
def _(x: torch.Tensor):
    return x * FACTOR


class Dispatched(Scaled):
    """Calls a function that another one chooses by the type of its argument."""

    def forward(self, x):
        return by_type(self.linear(x))


class Plain:
    """No module: its methods read a global, and an attribute of its class."""

    factor = FACTOR

    @staticmethod
    def scaled(x):
        return x * FACTOR

    @property
    def now(self):
        return FACTOR

    def __call__(self, x):
        return x * self.factor


class Counting:
    """Multiplies by the number of its calls, which no check may change."""

    def __call__(self, x):
        global CALLS
        CALLS += 1
        return x * CALLS


def count_in_turn(x):
    return count_in_the_next(x)


def count_in_the_next(x):
    return count_in_the_last(x)


def count_in_the_last(x):
    return count_at_last(x)


def count_at_last(x):
    return counted(x)


def counted(x):
    global CALLS
    CALLS += 1
    return x * CALLS


class FromEnvironment:
    def __call__(self, x):
        return x * float(os.environ["FACTOR_OF_TEST"])


class Patched:
    """The script replaces its method."""

    def __call__(self, x):
        return self.scaled(x)

    def scaled(self, x):
        return x


class Inherited(Plain):
    """Has the methods of its base class."""


class Static(Scaled):
    """Calls a static method of a class by its name."""

    def forward(self, x):
        return Plain.scaled(self.linear(x))


class OfLayer(Scaled):
    """Reads what the script has set as an attribute of one of torch's layers."""

    def __init__(self, factor):
        super().__init__(None)
        self.linear.factor = factor

    def forward(self, x):
        return self.linear(x) * getattr(self.linear.factor, "value", self.linear.factor)


class OfWeight(Scaled):
    """Reads what the script has set as an attribute of a weight and of a buffer."""

    def __init__(self):
        super().__init__(None)
        self.register_buffer("ones", torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        mask = getattr(self.linear.bias, "mask", 1)
        return self.linear(x) * self.ones * mask * getattr(self.ones, "factor", 1)


class ByProperty(Scaled):
    """Reads a property of an object in an attribute."""

    def forward(self, x):
        return self.linear(x) * self.scale.now


class Keyed(Scaled):
    """Finds its factor by its layer, without keeping the layer alive."""

    def __init__(self):
        super().__init__(None)
        self.factors = weakref.WeakKeyDictionary({self.linear: FACTOR})

    def forward(self, x):
        return self.linear(x) * self.factors[self.linear]


class Child(Scaled):
    """Reads the factor of its parent, which a strong reference would make a part of its part."""

    def __init__(self, parent):
        super().__init__(None)
        object.__setattr__(self, "parent", weakref.ref(parent))

    def forward(self, x):
        return self.linear(x) * self.parent().factor


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = FACTOR
        self.child = Child(self)

    @cached_property
    def sign(self):
        return 1

    def forward(self, x):
        return self.child(x)


class OfOtherFile(Scaled):
    """Calls a function of another file, which reads a third one."""

    def forward(self, x):
        return factors.operations.scaled(self.linear(x))


class OfTwoFiles(Scaled):
    """Reads variables of two files that have the same name."""

    def forward(self, x):
        return self.linear(x) * FACTOR * factors.settings.FACTOR


class Wide:
    """Has many attributes."""

    vars().update({f"factor{place}": FACTOR for place in range(100)})


class OfWide(Scaled):
    """Reads an attribute of a class with many."""

    def forward(self, x):
        return self.linear(x) * Wide.factor7


class Nested(Scaled):
    """Reads a number that is deep in dicts, or in a long list."""

    def forward(self, x):
        scale = self.scale
        while isinstance(scale, dict):
            scale = scale["inner"]
        return self.linear(x) * scale[0]


def scaled_by(model, x, factor):
    return model.linear(x) * FACTOR * factor


class PartialMethod(Scaled):
    """Is called by a method with some of its arguments."""

    forward = partialmethod(scaled_by, factor=1.0)


class ByDefault(Scaled):
    """Reads the default of a dict."""

    def forward(self, x):
        return self.linear(x) * self.scale.default_factory()


def count_deep(model, x):
    model.scale["inner"]["inner"]["inner"]["inner"]["inner"].append(1)
    return x * len(model.scale["inner"]["inner"]["inner"]["inner"]["inner"])


class CountingDeep(Scaled):
    """Changes a list that is deep in dicts."""

    def forward(self, x):
        return count_deep(self, self.linear(x))


class CountingFunction(Scaled):
    """Calls a function that counts its calls in an attribute of its own."""

    def forward(self, x):
        return counting(self.linear(x))


def counting(x):
    counting.calls += 1
    return x * counting.calls


class ByType(Scaled):
    """Branches on whether its factor is a flag."""

    def forward(self, x):
        return self.linear(x) * (2 if self.scale is True else 1)


def to_flag(model, factor):
    del factor
    model.scale = True


class Record(dict):
    """A dict whose items are its attributes."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class OfRecord(Scaled):
    def forward(self, x):
        return self.linear(x) * self.scale.factor


def in_record(model, factor):
    model.scale.factor = factor


class Configured(Scaled):
    """Reads a container that a library has written in Python."""

    def forward(self, x):
        return self.linear(x) * float(self.scale["scale"]["factor"])


def configuration():
    parser = ConfigParser()
    parser["scale"] = {"factor": "1.0"}
    return parser


def in_configuration(model, factor):
    model.scale["scale"]["factor"] = str(factor)


class Described:
    """Computes an attribute from a global."""

    def __get__(self, owner, kind=None):
        return FACTOR


class WithDescribed(nn.Module):
    factor = Described()


class ByDescribed(Scaled):
    def forward(self, x):
        return self.linear(x) * self.scale.factor


def nested(depth):
    scale = [1.0]
    for _ in range(depth):
        scale = {"inner": scale}
    return scale


def in_nested(model, factor):
    scale = model.scale
    while isinstance(scale, dict):
        scale = scale["inner"]
    count = len(scale)
    scale.clear()
    scale.extend(factor * 1.0 for _ in range(count))  # at the addresses of the former numbers


def in_settings(model, factor):
    del model
    factors.settings.FACTOR = factor


def in_wide(model, factor):
    del model
    Wide.factor7 = factor


def by_name(model, factor):
    del model
    global FACTOR
    FACTOR = factor


def in_parent(model, factor):
    model.factor = factor


def in_class(model, factor):
    del model
    Plain.factor = factor


def in_environment(model, factor):
    del model
    os.environ["FACTOR_OF_TEST"] = str(factor)


def in_method(model, factor):
    del model
    Patched.scaled = lambda _, x: x * factor


def on_layer(model, factor):
    model.linear.factor = torch.full((2,), factor, dtype=torch.float64)


def on_weight(model, factor):
    model.linear.bias.mask = torch.full((2,), factor, dtype=torch.float64)


def on_buffer(model, factor):
    model.ones.factor = factor


def in_object_on_layer(model, factor):
    model.linear.factor.value = factor


def in_activation(model, factor):
    model[1].activation = torch.nn.functional.gelu if factor > 1 else torch.nn.functional.relu


def in_method_of_convolution(model, factor):
    def scaled(self, x, weight, bias):
        return factor * nn.functional.conv1d(x, weight, bias)

    model[1]._conv_forward = MethodType(scaled, model[1])


def nowhere(model, factor):
    del model, factor


def in_dict(model, factor):
    model.factors[model.linear] = factor


class Listed(Scaled):
    """Multiplies by the mean of a list that is too long to follow its elements."""

    def forward(self, x):
        return self.linear(x) * (sum(self.scale) / len(self.scale))


def in_list(model, factor):
    del factor
    model.scale.clear()  # the new numbers get the memory of the old ones
    model.scale.extend((1 + number) / 2 for number in range(80))


def by_other(x):
    return x * read_factor()


def read_in_turn(x):
    return by_other(x)


def from_modules():
    """Return a model whose forward calls a function of a module, which reads another one, and the change."""
    settings, functions = ModuleType("settings_of_test"), ModuleType("functions_of_test")
    for module, text in (
        (settings, "FACTOR = 1.0"),
        (functions, "import settings_of_test\ndef scaled(x):\n    return x * settings_of_test.FACTOR"),
    ):
        sys.modules[module.__name__] = module
        module.__file__ = __file__
        exec(compile(text, __file__, "exec"), vars(module))
    globals()["functions_of_test"] = functions
    return OfModule(None), lambda _, factor: setattr(settings, "FACTOR", factor)


class OfModule(Scaled):
    """Calls a function by the name of its module."""

    def forward(self, x):
        return functions_of_test.scaled(self.linear(x))  # noqa: F821


def transformer():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)),
        nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True, dtype=torch.float64),
    )


def convolution():
    return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 2, 1, dtype=torch.float64), nn.Flatten())


def closure():
    """Return a model with a compiled function, and what changes the variable that it reads."""
    factor = FACTOR

    def scale(x):
        return x * factor

    def change(_, new):
        nonlocal factor
        factor = new

    return Scaled(torch.compile(scale, backend="eager")), change


class Guarded(Scaled):
    """Has objects of which no other process can have a copy, for other methods than its forward."""

    def __init__(self):
        super().__init__(read_factor)
        self.lock, self.queue, self.event = Lock(), Queue(), Event()

    def forward(self, x):
        return self.linear(x) * read_factor()


class Queues(Guarded):
    """Uses one of them in each call."""

    def forward(self, x):
        self.queue.put(len(x))
        return super().forward(x)


CASES = {
    "decorated": lambda: (Decorated(None), by_name),
    "compiled": lambda: (Compiled(None), by_name),
    "compiled closure": closure,
    "dispatched": lambda: (Dispatched(None), by_name),
    "static method": lambda: (Static(None), by_name),
    "property": lambda: (ByProperty(Plain()), by_name),
    "inherited property": lambda: (ByProperty(Inherited()), by_name),
    "method": lambda: (Scaled(Inherited().scaled), by_name),
    "attribute of a class": lambda: (Scaled(Inherited()), in_class),
    "counter": lambda: (Scaled(Counting()), nowhere),
    "counter in a chain": lambda: (Scaled(count_in_turn), nowhere),
    "environment": lambda: (Scaled(FromEnvironment()), in_environment),
    "method that is replaced": lambda: (Scaled(Patched()), in_method),
    "tensor on a layer": lambda: (OfLayer(torch.ones(2, dtype=torch.float64)), on_layer),
    "number on a buffer": lambda: (OfWeight(), on_buffer),
    "tensor on a weight": lambda: (OfWeight(), on_weight),
    "object on a layer": lambda: (OfLayer(SimpleNamespace(value=FACTOR)), in_object_on_layer),
    "activation": lambda: (transformer(), in_activation),
    "method of a layer": lambda: (convolution(), in_method_of_convolution),
    "function that calls others": lambda: (Scaled(read_in_turn), by_name),
    "function of a module": from_modules,
    "long list": lambda: (Listed([float(1 + number) for number in range(80)]), in_list),
    "weak key": lambda: (Keyed(), in_dict),
    "function of another file": lambda: (OfOtherFile(None), in_settings),
    "name of two files": lambda: (OfTwoFiles(None), by_name),
    "the same name of the other": lambda: (OfTwoFiles(None), in_settings),
    "class with many attributes": lambda: (OfWide(None), in_wide),
    "deep dict": lambda: (Nested(nested(12)), in_nested),
    "long list of numbers": lambda: (Nested([1.0 + place for place in range(100)]), in_nested),
    "descriptor": lambda: (ByDescribed(WithDescribed()), by_name),
    "partial method": lambda: (PartialMethod(None), by_name),
    "default of a dict": lambda: (ByDefault(defaultdict(lambda: FACTOR)), by_name),
    "deep counter": lambda: (CountingDeep(nested(5)), nowhere),
    "attribute of a function": lambda: (CountingFunction(None), nowhere),
    "number that becomes a flag": lambda: (ByType(1), to_flag),
    "dict of attributes": lambda: (OfRecord(Record(factor=1.0)), in_record),
    "configuration": lambda: (Configured(configuration()), in_configuration),
    "weak reference": lambda: (Parent(), in_parent),
    "locks that no call uses": lambda: (Guarded(), by_name),
}


def trained(_, case, helpers):
    """Return the loss of each step, and the lines of the account."""
    global CALLS
    CALLS = counting.calls = 0
    for change in (by_name, in_class, in_environment, in_method, in_settings, in_wide):
        change(None, 1.0)
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=torch.float64)
    model, change = CASES[case]()
    losses = []
    with (
        warnings.catch_warnings(),
        script_with_helpers(1 + helpers, options=ALL_SPLIT, forks=True) as account,
    ):
        warnings.simplefilter("ignore")  # torch's compiler reads `grad` of tensors that have none
        for step in range(STEPS):
            if step == STEPS // 2:
                change(model, 2.0)
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
        return losses, account.lines()


@pytest.mark.parametrize("case", [case for case in CASES if case != "tensor on a weight"])
def test_a_factor_that_changes_reaches_helpers(processes, case):
    ((alone, _),) = processes.run(trained, 1, case, 0)
    ((found, account),) = processes.run(trained, 1, case, 1)
    assert found == pytest.approx(alone, rel=1e-12)
    assert [line for line in account if f"{STEPS} calls split" in line], account


def puts(_):
    """Return how many numbers the calls of a model have put into its queue, and the lines of the account."""
    torch.manual_seed(0)
    model = Queues()
    with script_with_helpers(2, options=ALL_SPLIT, forks=True) as account:
        for _ in range(3):
            model(torch.randn(6, 3, dtype=torch.float64)).square().mean().backward()
        return model.queue.qsize(), account.lines()


def test_a_call_that_uses_a_queue_is_unsplit_and_not_checked(processes):
    """Only this finds that checks put as much into a queue, or a log of a tracker, as tens of calls."""
    ((count, account),) = processes.run(puts, 1)
    assert count == 3
    assert [line for line in account if "Queues" in line and "3 calls unsplit" in line], account


def test_a_call_that_reads_a_tensor_on_a_weight_is_unsplit_from_then_on(processes):
    ((alone, _),) = processes.run(trained, 1, "tensor on a weight", 0)
    ((found, account),) = processes.run(trained, 1, "tensor on a weight", 1)
    assert found == pytest.approx(alone, rel=1e-12)
    assert [line for line in account if f"{STEPS // 2} calls unsplit" in line and "mask" in line], account
