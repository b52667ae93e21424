"""Calls of modules that have parameters are reported."""

import logging
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from samestep.hooks import training_events
from samestep.hooks.training_events import Listener, subscribed
from samestep.observe import step_clock
from support.clocked_scripts import loader


class Calls(Listener):
    """A listener that records the called modules."""

    def __init__(self):
        self.modules = []

    def call(self, module, inputs, *, is_training):
        self.modules.append(module)
        return nullcontext()


class Empty(nn.Module):
    """A module with parameters and a length of 0."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def __len__(self):
        return 0

    def forward(self, inputs, module=None):
        return self.layer(inputs)


class Holding(nn.Module):
    """A module with a cycle of parts, and possibly a part with parameters."""

    def __init__(self, part):
        super().__init__()
        self.above = nn.Identity()
        self.above.below = self
        self.part = part

    def forward(self, inputs):
        return inputs if self.part is None else self.part(inputs)


class Overriding(nn.Module):
    """A module with parts in a list, which overrides `parameters`."""

    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(2, 1), nn.Linear(2, 1)]

    def parameters(self, recurse=True):
        for part in self.parts:
            yield from part.parameters(recurse)

    def forward(self, inputs):
        return sum(part(inputs) for part in self.parts)


@pytest.mark.parametrize(
    ("module", "is_reported"),
    [
        (Empty(), True),
        (nn.Sequential(Empty()), True),
        (Holding(Empty()), True),
        (Holding(None), False),
        (Overriding(), True),
        (nn.ReLU(), False),
    ],
)
def test_a_call_is_reported_if_any_submodule_has_a_parameter(module, is_reported):
    calls = Calls()
    with subscribed(calls):
        module(torch.ones(1, 2))
    assert calls.modules == ([module] if is_reported else [])


def test_a_forward_argument_named_module_is_accepted():
    with subscribed(Listener()):
        assert Empty()(torch.ones(1, 2), module="any").shape == (1, 1)


def test_a_backward_may_get_an_edge_of_a_graph_or_an_iterator_of_losses():
    """Only this catches a listener that is given an edge, or that uses up the losses."""
    seen = []

    class Losses(Listener):
        def backward(self, losses):
            seen.append([loss.item() for loss in losses])

    weight = torch.tensor(2.0, requires_grad=True)
    with subscribed(Losses()):
        torch.autograd.backward(get_gradient_edge(weight * 1), torch.ones(()))
        torch.autograd.backward([get_gradient_edge(weight * 1), weight * 3], [torch.ones(()), torch.ones(())])
        torch.autograd.backward(weight * factor for factor in (5, 7))
    assert seen == [[], [6.0], [10.0, 14.0]]
    assert weight.grad == 1 + 1 + 3 + 5 + 7


def test_thread_ids_are_read_only_for_a_listener_with_a_thread(monkeypatch):
    def refused():
        raise AssertionError

    monkeypatch.setattr(training_events, "getpid", refused)
    monkeypatch.setattr(training_events, "get_ident", refused)
    model = Empty()
    with subscribed(Listener()):
        model(torch.ones(1, 2)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()


_STEPS = 40
_LOG = logging.getLogger("torch._dynamo.symbolic_convert")


@pytest.fixture(autouse=True)
def _afresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_function_that_calls_a_model_is_compiled_once(clock, monkeypatch, whole):
    monkeypatch.setattr(step_clock, "INTERVAL_S", 0.001)  # the log that is added to gets shorter, too

    def script():
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        called = torch.compile(model, backend="eager") if whole else model

        def loss_of(batch):
            return called(torch.sin(batch)).square().mean()

        compiled = loss_of if whole else torch.compile(loss_of, backend="eager")
        for number, (batch,) in enumerate(loader(samples=4 * _STEPS)):
            with torch._dynamo.config.patch(error_on_recompile=number > 4):
                compiled(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    _, lines, _ = clock(script, warm_up=5)
    assert [line["samples"] for line in lines] == [4] * (_STEPS - 5)
    assert all(line["forward"] > 0 for line in lines)


class Named(nn.Module):
    """A model whose input is a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, batch):
        return self.layer(batch["inputs"])


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_functions_that_the_hooks_call_are_not_compiled(clock, caplog, request):
    caplog.set_level(logging.INFO, _LOG.name)
    request.addfinalizer(partial(_LOG.removeHandler, caplog.handler))
    _LOG.addHandler(caplog.handler)  # torch 2.6 does not pass records on to the root logger

    def script():
        model = Named()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @torch.compile(backend="eager")
        def loss_of(batch):
            return model({"inputs": torch.sin(batch)}).square().mean()

        for (batch,) in loader(samples=20):
            loss_of(batch).backward()
            optimizer.step()

    _, lines, _ = clock(script)
    assert len(lines) == 5
    compiled = [one.getMessage() for one in caplog.records if "start tracing" in one.getMessage()]
    ours = [line for line in compiled if "/src/samestep/" in line]
    assert len(compiled) > len(ours)
    assert bool(ours) == hasattr(torch._dynamo.eval_frame, "FrameExecStrategy")  # torch 2.6 skips the file
    assert all(
        "/samestep/hooks/training_events.py" in line for line in ours
    )  # which models are called through


class Steps(Listener):
    """A listener that records the optimizers that have stepped."""

    def __init__(self):
        self.optimizers = []

    def after_step(self, optimizer):
        self.optimizers.append(optimizer)


def test_an_optimizer_is_reported_after_a_step_of_another_raised():
    listener, weights = Steps(), nn.Parameter(torch.ones(2))
    raising, fallback = torch.optim.LBFGS([weights]), torch.optim.SGD([weights])
    inner = torch.optim.SGD([weights])

    def ends():
        raise StopIteration

    def steps_another():
        inner.step()
        return weights.sum()

    with subscribed(listener):
        with pytest.raises(StopIteration):
            raising.step(ends)
        fallback.step()
        raising.step(steps_another)
        fallback.step()
    assert listener.optimizers == [fallback, raising, fallback]
