"""Computes gradients of outputs of a split call from which other outputs of the call are computed.

In the script's graph a split call is one node, whose outputs do not depend on each other. A script may need
the derivative of an output with respect to another, as a penalty on the latents of a generator does::

    images, latents = generator(noise)
    (slope,) = torch.autograd.grad(images.sum(), latents, create_graph=True)

The backward then computes the call again on this rank, with a graph in which that derivative exists.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import ref

from torch import Tensor
from torch.autograd.graph import GradientEdge

from samestep.autopilot.helpers.split_node import GradientHook, call_of_operand, sources_of
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

_ARGUMENTS = ("grad_outputs", "retain_graph", "create_graph", "allow_unused", "is_grads_batched")
"""The arguments of `torch.autograd.grad` after the first two, in their order."""


@contextmanager
def operand_gradients() -> Iterator[None]:
    """Let the script get the gradients of operands by ``grad``, ``retain_grad`` and hooks on tensors."""
    hooks = {
        declarations.GRAD_OF_OPERAND: wrapping(_grad),
        declarations.HOOK_ON_OPERAND: wrapping(_register_hook),
        declarations.RETAINED_OF_OPERAND: wrapping(_retain_grad),
    }
    with attached_all(hooks):
        yield


def _register_hook(original: Callable[..., Any], tensor: Tensor, hook: GradientHook) -> Any:
    call = call_of_operand(tensor)
    return original(tensor, hook) if call is None else call.hook(tensor.output_nr, hook)


def _retain_grad(original: Callable[..., None], tensor: Tensor) -> None:
    call = None if tensor.retains_grad else call_of_operand(tensor)
    original(tensor)  # it stores the gradient without that by other outputs
    if call is not None:
        call.hook(tensor.output_nr, _Retained(tensor))


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


def _grad(original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = [inputs] if isinstance(inputs, (Tensor, GradientEdge)) else [*inputs]  # it may be a generator
    named = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    operands = [
        (place, tensor, call)
        for place, tensor in enumerate(tensors)
        if isinstance(tensor, Tensor) and (call := call_of_operand(tensor)) is not None
    ]
    if not operands or named.get("is_grads_batched"):
        return original(outputs, tensors, *args, **kwargs)
    may_be_unused = named.pop("allow_unused", None) or named.get("materialize_grads")
    totals: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for place, tensor, call in operands:
            hook = call.hook(tensor.output_nr, partial(totals.__setitem__, place))
            stack.callback(hook.remove)
        # The call's node is executed for gradients of its operands only.
        sources = [source for _, tensor, _ in operands for source in sources_of(tensor)]
        results = original(outputs, [*tensors, *sources], **named, allow_unused=True)
    gradients = tuple(totals.get(place, results[place]) for place in range(len(tensors)))
    if not may_be_unused and any(gradient is None for gradient in gradients):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return gradients
