"""Puts a split call into the script's autograd graph, as one node.

Its backward gets the gradients of the whole outputs, and lets all ranks compute those of their slices. Each
rank keeps the graph of its slice as long as torch keeps what this node has saved: after a backward without
``retain_graph`` no longer than the node of any other operation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import finalize

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.hooks.thread_values import ThreadValue


class DifferentiableCall(Protocol):
    """A split call whose graph is kept on all ranks."""

    @property
    def outputs(self) -> Sequence[Tensor]:
        """The outputs that have gradients."""

    def backward(
        self, sources: Sequence[Tensor], gradients: Sequence[Tensor | None], *, retain: bool
    ) -> Sequence[Tensor | None]:
        """Return the gradients of the sources, given those of the outputs; another backward may follow.

        With gradients enabled it computes them by operations that can be differentiated again.
        """

    def release(self) -> None:
        """Release the graph on all ranks."""


_retains: ThreadValue[bool] = ThreadValue(default=False)
"""Whether the backward that this thread runs keeps its graph for another one."""


@contextmanager
def retained_graphs() -> Iterator[None]:
    """Let the backward of a split call know whether its graph is kept."""

    def at(place: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose `retain_graph` and `create_graph` are the arguments from a place on."""
        retains = _argument(args, kwargs, place, "retain_graph")
        if retains is None:
            retains = _argument(args, kwargs, place + 1, "create_graph")
        with _retains.bound(bool(retains)):
            return original(*args, **kwargs)

    hooks = {
        declarations.RETAINING_BACKWARD: wrapping(partial(at, 2)),
        declarations.RETAINING_GRAD: wrapping(partial(at, 3)),
    }
    with attached_all(hooks):
        yield


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


class _Saved:
    """A value that torch saves with the node; it ends when torch releases it."""


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: DifferentiableCall, token: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.sources = call, sources
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(token)
        return tuple(output.data for output in call.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if torch has released the graph
        return None, None, *ctx.call.backward(ctx.sources, gradients, retain=_retains.get())


def as_node(call: DifferentiableCall, sources: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of a call as results of one node, whose operands are the call's sources."""
    saved = _Saved()
    finalize(saved, call.release)
    held, token = [saved], torch.empty(0, device="cpu")
    with saved_tensors_hooks(lambda _: held.pop(), lambda _: token):
        outputs: tuple[Tensor, ...] = _Node.apply(call, token, *sources)  # type: ignore[no-untyped-call]
    return outputs
