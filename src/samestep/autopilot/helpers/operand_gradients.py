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

from torch import Tensor
from torch.autograd.graph import GradientEdge

from samestep.autopilot.helpers.split_node import GradientHook, NodeCall, call_of_operand
from samestep.hooks import declarations
from samestep.hooks.backward import arguments_of_engine
from samestep.hooks.registry import attached_all, wrapping


@contextmanager
def operand_gradients() -> Iterator[None]:
    """Let the script get the gradients of operands by torch's functions, ``retain_grad`` and hooks."""
    hooks = {
        declarations.ENGINE_OF_OPERAND: wrapping(_run),
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


def _run(
    original: Callable[..., tuple[Tensor | None, ...]],
    outputs: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor | None, ...]:
    """Run a backward: torch's functions, which a script may have imported before, look this one up."""
    named = arguments_of_engine(args, kwargs)
    inputs, accumulates = [*named["inputs"]], named["accumulate_grad"]
    operands = [each for each in _operands(inputs) if not accumulates or isinstance(each[1], Tensor)]
    if not operands:
        return original(outputs, **named)
    of_torch = [*inputs]
    if accumulates:
        of_torch = [tensor for tensor in inputs if all(tensor is not operand for _, operand, _ in operands)]
        for _, tensor, _ in operands:
            tensor.retain_grad()  # as torch's engine does
    changed = {"inputs": (*of_torch, *_anchors(operands)), "allow_unreachable": True}
    with _totals_of(operands) as totals:
        results = original(outputs, **{**named, **changed})
    if accumulates:
        return results
    gradients = tuple(totals.get(place, results[place]) for place in range(len(inputs)))
    if not named["allow_unreachable"] and any(gradient is None for gradient in gradients):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return gradients
