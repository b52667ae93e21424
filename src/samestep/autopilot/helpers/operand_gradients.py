"""Computes gradients of outputs of a split call from which other outputs of the call are computed.

In the script's graph a split call is one node, whose outputs do not depend on each other. A script may need
the derivative of an output with respect to another, as a penalty on the latents of a generator does::

    images, latents = generator(noise)
    (slope,) = torch.autograd.grad(images.sum(), latents, create_graph=True)

The backward then computes the call again on this rank, with a graph in which that derivative exists.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from samestep.autopilot.equivalence.effects import ignored_warnings
from samestep.autopilot.helpers.split_node import GradientHook, NodeCall, call_of_operand
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

_ARGUMENTS = ("grad_outputs", "retain_graph", "create_graph", "allow_unused", "is_grads_batched")
"""The arguments of `torch.autograd.grad` after the first two, in their order."""
_INPUTS = 4  # the place of the inputs among the arguments of `torch.autograd.backward` after the first


@contextmanager
def operand_gradients() -> Iterator[None]:
    """Let the script get the gradients of operands by torch's functions, ``retain_grad`` and hooks."""
    hooks = {
        declarations.GRAD_OF_OPERAND: wrapping(_grad),
        declarations.BACKWARD_OF_OPERAND: wrapping(_backward),
        declarations.HOOK_ON_OPERAND: wrapping(_register_hook),
        declarations.RETAINED_OF_OPERAND: wrapping(_retain_grad),
    }
    with attached_all(hooks):
        yield


def _register_hook(original: Callable[..., Any], tensor: Tensor, hook: GradientHook) -> Any:
    operand = call_of_operand(tensor)
    if operand is None:
        return original(tensor, hook)
    call, place = operand
    return call.hook(place, hook)


def _retain_grad(original: Callable[..., None], tensor: Tensor) -> None:
    operand = None if tensor.retains_grad else call_of_operand(tensor)
    original(tensor)  # it stores the gradient without that by other outputs
    if operand is not None:
        call, place = operand
        call.hook(place, _Retained(tensor))


class _Retained:
    """A hook that adds up the gradients of a tensor in the `grad` of it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = ref(tensor)
        self._total: Tensor | None = None

    def __call__(self, gradient: Tensor) -> None:
        tensor = self._tensor()
        if tensor is not None:
            self._total = gradient.clone() if self._total is None else self._total + gradient
            tensor.grad = self._total


_Operand: TypeAlias = tuple[int, Any, tuple[NodeCall, int]]
"""The place of an operand among the tensors whose gradients the script gets, the operand, and its call with
its place among the outputs of that.

The operand is a tensor, or a `GradientEdge` that stands for one."""


def _listed(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, (Tensor, GradientEdge)) else [*inputs]  # it may be a generator


def _operands(tensors: Sequence[Any]) -> list[_Operand]:
    return [
        (place, tensor, call)
        for place, tensor in enumerate(tensors)
        if isinstance(tensor, (Tensor, GradientEdge)) and (call := call_of_operand(tensor)) is not None
    ]


@contextmanager
def _totals_of(operands: Sequence[_Operand]) -> Iterator[dict[int, Tensor]]:
    """Yield a dict that gets the gradients of operands, by their places, from a backward in the block."""
    totals: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for place, _, (call, place_there) in operands:
            hook = call.hook(place_there, partial(totals.__setitem__, place))
            stack.callback(hook.remove)
        yield totals


def _anchors(operands: Sequence[_Operand]) -> list[Tensor]:
    """Return inputs for which a backward comes to the nodes of all calls.

    The weights would do, but their hooks run for the inputs of any backward.
    """
    return [call.anchor for _, _, (call, _) in operands]


def _grad(original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = _listed(inputs)
    named = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    operands = _operands(tensors)
    if not operands:
        return original(outputs, tensors, *args, **kwargs)
    if named.pop("is_grads_batched", False):
        return _one_by_one(original, outputs, tensors, named)
    may_be_unused = named.pop("allow_unused", None) or named.get("materialize_grads")
    with _totals_of(operands) as totals:
        results = original(outputs, [*tensors, *_anchors(operands)], **named, allow_unused=True)
    gradients = tuple(totals.get(place, results[place]) for place in range(len(tensors)))
    if not may_be_unused and any(gradient is None for gradient in gradients):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return gradients


def _one_by_one(
    original: Callable[..., Any], outputs: Any, tensors: Sequence[Any], named: dict[str, Any]
) -> tuple[Tensor | None, ...]:
    """Return the gradients for each of several gradients of the outputs, stacked.

    A hook on an operand would get one tensor for all of them, which has no values outside of the backward.
    """
    several = _listed(named.pop("grad_outputs"))
    count = next(len(gradients) for gradients in several if gradients is not None)
    rows = []
    for row in range(count):
        of_row = [None if gradients is None else gradients[row] for gradients in several]
        kept = {} if row == count - 1 else {"retain_graph": True}
        rows.append(_grad(original, outputs, tensors, of_row, **{**named, **kept}))
    return tuple(None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True))


def _backward(original: Callable[..., None], tensors: Any, *args: Any, **kwargs: Any) -> None:
    inputs = args[_INPUTS] if len(args) > _INPUTS else kwargs.get("inputs")
    listed = [] if inputs is None else _listed(inputs)
    operands = [operand for operand in _operands(listed) if isinstance(operand[1], Tensor)]
    if not operands:
        if listed:
            kwargs, args = {**kwargs, "inputs": listed}, args[:_INPUTS]
        original(tensors, *args, **kwargs)
        return
    places = {place for place, *_ in operands}
    plain = [tensor for place, tensor in enumerate(listed) if place not in places]
    with _totals_of(operands) as totals:
        original(tensors, *args[:_INPUTS], **{**kwargs, "inputs": [*plain, *_anchors(operands)]})
    for place, tensor, _ in operands:
        if place in totals:
            with ignored_warnings():  # that it is no leaf
                before = tensor.grad
            tensor.grad = totals[place] if before is None else before + totals[place]
