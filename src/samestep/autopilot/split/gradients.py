"""Handles gradients that a forward computes itself: averages `torch.autograd.grad`, refuses others.

A call that trains, by a backward or a step of an optimizer, cannot be computed for a comparison, because the
states of optimizers and the gradients of parameters would be those after several calls. It cannot be split
either: its backward would be of a slice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.autopilot.split.sharded_autograd import nodes_of, uses_split_call
from samestep.autopilot.split.slice_context import before_collective, current_slice
from samestep.base.context_values import bound
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.thread_values import ThreadValue
from samestep.ranks.world.protocol import World


class SliceGradients:
    """Averages the gradients of weights that a forward itself computes by `torch.autograd.grad`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weights: set[int] = set()
        """The ids of the weights of the call that is being computed."""

    def follows(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a weight of the call that is being computed."""
        return current_slice.get() is not None and id(tensor) in self.weights

    def average(self, gradients: Sequence[Tensor | None]) -> None:
        """Average gradients over the ranks, in place."""
        for gradient in gradients:
            if gradient is not None:
                self.world.all_reduce(gradient)
                gradient.div_(self.world.place.size)


def leaves_of(*outputs: Tensor) -> list[Tensor]:
    """Return the tensors at the end of the graphs of `outputs`, in which a backward accumulates gradients."""
    variables = (getattr(node, "variable", None) for node in nodes_of(outputs))
    return list({id(variable): variable for variable in variables if variable is not None}.values())


_differentiated: ContextVar[tuple[int, ...]] = ContextVar("samestep_differentiated", default=())
"""The outputs of a running `torch.autograd.grad`, which torch calls by name again under a function mode."""


def unaveraged(outputs: Tensor | Sequence[Tensor]) -> AbstractContextManager[None]:
    """Let `torch.autograd.grad` return the gradients of these outputs as this rank computes them."""
    return bound(_differentiated, _identities(outputs))


def _identities(outputs: Tensor | Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(id, [outputs] if isinstance(outputs, Tensor) else outputs))


@contextmanager
def averaging_grad(of: Callable[[], SliceGradients | None]) -> Iterator[None]:
    """Let `torch.autograd.grad` return averages for gradients of parameters."""

    def grad(original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _differentiated.get() == _identities(outputs):
            return original(outputs, inputs, *args, **kwargs)
        tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)  # it may be a generator
        with unaveraged(outputs):
            results = original(outputs, tensors, *args, **kwargs)
        gradients = of()
        if gradients is None:
            return results
        of_weights = [
            gradient for gradient, tensor in zip(results, tensors, strict=False) if gradients.follows(tensor)
        ]
        if of_weights and any(gradient is not None and gradient.requires_grad for gradient in of_weights):
            if not uses_split_call(outputs):
                return results  # each rank has computed all of it
            raise UsageError(
                "torch.autograd.grad(..., create_graph=True) of a model's parameters cannot be split, "
                "because a penalty from it covers only a worker's slice."
            )
        if of_weights:
            before_collective()
            gradients.average(of_weights)
        return results

    with attached(declarations.AVERAGED_GRAD, wrapping(grad)):
        yield


_is_comparing = ThreadValue(default=False)


class TrainsError(Exception):
    """A module trains when it is called."""


def training_nothing() -> AbstractContextManager[None]:
    """Raise `TrainsError` where the calling thread is about to call backward or to step an optimizer."""
    return _is_comparing.bound(value=True)


@contextmanager
def detected_training() -> Iterator[None]:
    """Raise an error where a forward, compared or split, calls backward or steps an optimizer."""

    def backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # noqa: SLF001 - else an activation checkpoint calls it
            _refuse("a backward")
        original(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(attached(declarations.FORWARD_BACKWARD, wrapping(backward)))
        stack.callback(register_optimizer_step_pre_hook(lambda *_: _refuse("an optimizer step")).remove)
        yield


def _refuse(action: str) -> None:
    if _is_comparing.get():
        raise TrainsError(f"it runs {action} when it is called")
    if current_slice.get() is not None:
        raise UsageError(f"{action} within a split call of a model trains with a slice.")
