"""Values of outputs and attributes, beside tensors, that may depend on the slice."""

import io
import itertools
import logging
import random
import sys
import threading
from argparse import Namespace
from collections import deque
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.guards import (
    Identity,
    Reach,
    changed,
    hooked_module,
    kept_of_slice,
    plain_attributes,
    python_state,
    recognized,
    returned_of_slice,
    unfollowed,
)
from samestep.autopilot.state.saved_state import HeldTensors, SavedState

X = torch.ones(4, 2)


class Constant:
    limit = 3


CONSTANT = Constant()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Normal(x, x),
        lambda x: x.numpy(),
        lambda x: lambda: x,
        lambda x: iter([x]),
        lambda x: {"found": {len(x)}},
    ],
    ids=["distribution", "array", "closure", "iterator", "set"],
)
def test_a_new_object_among_the_outputs_may_depend_on_the_slice(make):
    assert returned_of_slice((X, make(X)), (X[:2], make(X[:2])), 4) is not None


def test_texts_and_flags_are_compared():
    assert returned_of_slice((X, "a", True, None), (X[:2], "a", True, None), 4) is None
    assert returned_of_slice((X, "a"), (X[:2], "b"), 4) == "[1]"
    assert returned_of_slice((X, True), (X[:2], False), 4) == "[1]"


def test_lists_of_other_lengths_differ():
    assert returned_of_slice(["a", "a"], ["a"], 2) == "[1]"


def test_the_same_object_in_both_calls_does_not_depend_on_the_slice():
    assert returned_of_slice((X, CONSTANT, len), (X[:2], CONSTANT, len), 4) is None


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.constant = None, Categorical(logits=X)

    def forward(self, x):
        self.kept = Categorical(logits=x)
        return x


def test_an_object_that_a_call_assigns_to_an_attribute_is_kept_from_the_slice():
    module = Keeps()
    before = python_state(module)
    assert not changed(before, python_state(module))
    module(X)
    whole = changed(before, python_state(module))
    module(X)

    assert kept_of_slice(whole, changed(before, python_state(module)), 4) == "kept"


SEEN, LATEST = set(), deque(maxlen=8)


class Watched(nn.Module):
    level = 1

    def forward(self, x):
        return x * len(SEEN) * len(LATEST)


@pytest.mark.usefixtures("_frequent_switches")
@pytest.mark.parametrize(
    "read",
    [python_state, SavedState, lambda model: HeldTensors(model, ())],
    ids=["guards", "saved", "held"],
)
def test_a_thread_changes_what_a_model_refers_to(read):
    model, over = Watched(), threading.Event()
    vars(model).update({f"list{number}": [number] for number in range(60)})

    def change():
        number = 0
        while not over.is_set():
            number += 1
            SEEN.add(number)
            LATEST.append(number)
            setattr(model, f"latest{number % 3}", [number])
            setattr(Watched, f"level{number % 3}", number)
            if number % 3 == 0:
                SEEN.clear()
                for one in range(3):
                    delattr(model, f"latest{one}")
                    delattr(Watched, f"level{one}")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(400):
            read(model)
    finally:
        over.set()
        thread.join()


TYPED = """
SCALE = 1.0
class Typed(nn.Module):
    def forward(self, x):
        return SCALE * x
"""


@pytest.mark.parametrize(
    ("file", "module", "is_guard"),
    [
        ("<stdin>", {"__name__": "__main__", "__file__": "<stdin>"}, True),  # python < train.py
        ("<stdin>", {"__name__": "__main__"}, True),  # the prompt
        ("<string>", {"__name__": "__main__"}, True),  # python -c
        ("<string>", {"__name__": "own", "__file__": "/home/ada/own.py"}, True),  # exec
        ("<string>", {"__name__": "random", "__file__": random.__file__}, False),
        ("<frozen os>", {"__name__": "__main__"}, False),
    ],
)
def test_a_global_of_code_without_a_file_is_a_guard(file, module, is_guard):
    """Only this finds a model of the prompt that goes on with a former value of a global on helpers."""
    names = {"nn": nn, **module}
    exec(compile(TYPED, file, "exec"), names)
    assert ((-1, "SCALE") in plain_attributes(names["Typed"]())) == is_guard


class Held(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.int64(4), np.int64(5)),
        (np.bool_(False), np.bool_(True)),
        (b"first", b"second"),
        (1j, 2j),
        (int, float),
        (torch.relu, torch.tanh),
        ({"a": {"b": {"c": {"d": False}}}}, {"a": {"b": {"c": {"d": True}}}}),
        ([0] * 100, [0] * 99 + [1]),
        ([0] * 100, [0] * 101),
        (dict.fromkeys(range(100)), {**dict.fromkeys(range(100)), 3: 1}),
        (set(range(100)), set(range(1, 101))),
        (np.zeros(100), np.eye(10).ravel()),
    ],
)
def test_a_value_that_forward_may_branch_on_is_a_guard(before, after):
    assert plain_attributes(Held(before)) != plain_attributes(Held(after))


def test_the_layer_that_is_in_evaluation_mode_is_a_guard():
    """Only this finds a number of layers in training mode as the guard."""
    layers = [nn.Sequential(nn.Dropout(), nn.Dropout()) for _ in range(2)]
    for place, parts in enumerate(layers):
        parts[place].eval()
    assert plain_attributes(layers[0]) != plain_attributes(layers[1])


def test_attributes_of_the_compiler_are_none_of_the_script():
    """`torch.compile` marks weights at the first call, and results of a batch of another size."""
    module, batch = nn.Linear(2, 2), torch.ones(4, 2)
    before = plain_attributes(module)
    module.weight._dynamo_static_input_type = "unguarded"
    batch._dynamo_weak_dynamic_indices = {0}
    assert plain_attributes(module) == before
    assert recognized(module, Reach.of(module), CallArguments((batch,))) is None
    batch.kind = "night"
    module.weight.kind = "night"
    assert plain_attributes(module) != before
    assert recognized(module, Reach.of(module), CallArguments((batch,))) is not None


def test_a_buffer_made_by_its_class_has_no_attributes_of_the_script():
    """`nn.Buffer` marks the tensor, and a rotary embedding passes its own to the layers."""
    module, table = nn.Linear(2, 2), nn.Buffer(torch.ones(4, 2), persistent=False)
    assert recognized(module, Reach.of(module), CallArguments((torch.ones(4, 2), table))) is None
    table.kind = "night"
    assert recognized(module, Reach.of(module), CallArguments((torch.ones(4, 2), table))) is not None


def test_a_configuration_may_have_a_logger():
    """Only this finds the stream of a logger's handler as one that the call may use up."""
    log = logging.getLogger(__name__)
    log.addHandler(handler := logging.StreamHandler(io.StringIO()))
    try:
        assert unfollowed(CallArguments((X, Namespace(log=log)))) is None
        assert unfollowed(CallArguments((X, Namespace(lines=io.StringIO())))) is not None
    finally:
        log.removeHandler(handler)


def test_an_identity_equals_no_other_object_when_its_own_has_ended():
    kept = Constant()
    assert Identity(kept) == Identity(kept)
    assert Identity(None) == Identity(None)
    ended = Identity(Constant())
    assert all(ended != Identity(value) and Identity(value) != ended for value in (None, kept))


def test_a_hook_that_collects_outputs_for_a_running_call_would_get_slices(monkeypatch):
    """Transformers has such hooks on the layers of each backbone."""
    collecting = ContextVar("collecting", default=None)
    library = "transformers.utils.output_capturing"
    monkeypatch.setitem(sys.modules, library, Namespace(_active_collector=collecting))
    model = nn.Sequential(nn.Linear(2, 2))

    def hook(module, args, output):
        return None

    model[0].register_forward_hook(hook)
    assert hooked_module(model) == "0"
    hook.__module__ = library
    assert hooked_module(model) is None
    token = collecting.set({"hidden_states": []})
    assert hooked_module(model) == "0"
    collecting.reset(token)


def test_the_hook_for_activation_checkpoints_suits_slices():
    def make_inputs_require_grads(module, args, output):
        output.requires_grad_(True)

    model = nn.Sequential(nn.Embedding(2, 2))
    model[0].register_forward_hook(make_inputs_require_grads)
    assert hooked_module(model) == "0"
    make_inputs_require_grads.__module__ = "transformers.modeling_utils"
    assert hooked_module(model) is None


def test_a_method_of_a_layer_of_torch_is_a_guard_however_it_is_replaced():
    """Only this finds code that is new in the same function, as a notebook reloads a file with it."""

    def scaled(self, x):
        return nn.functional.linear(x, self.weight, self.bias) * 2

    def centered(self, x):
        return nn.functional.linear(x - x.mean(0), self.weight, self.bias)

    layer = nn.Linear(2, 2)
    guards = [plain_attributes(layer)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", scaled)
        guards.append(plain_attributes(layer))
        scaled.__code__ = centered.__code__
        guards.append(plain_attributes(layer))
    guards.append(plain_attributes(layer))
    assert guards[0] == guards[3]
    assert all(first != second for first, second in itertools.pairwise(guards))
