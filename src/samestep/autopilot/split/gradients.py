"""Sums the gradients of slices, and averages those that a forward computes itself by `torch.autograd.grad`.

The backward of a split call and the equivalence check call the same function, `sums`: with a fault of it, the
check fails, and no call is split.

A call that trains, by a backward or a step of an optimizer, cannot be computed for a comparison, because the
states of optimizers and the gradients of parameters would be those after several calls. It cannot be split
either: its backward would be of a slice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.autopilot.split.sharded_autograd import nodes_of, uses_split_call
from samestep.autopilot.split.slice_context import before_collective, current_slice
from samestep.base.errors import UsageError
from samestep.hooks import declarations, module_parts
from samestep.hooks.backward import arguments_of_engine
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.thread_values import ThreadValue, bound
from samestep.parallel.gradients.agreement import is_sparse
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


_unaveraged: ContextVar[tuple[int, ...]] = ContextVar("samestep_unaveraged", default=())
"""The outputs of which `torch.autograd.grad` returns gradients as this rank computes them."""


def unaveraged(outputs: Tensor | Sequence[Tensor]) -> AbstractContextManager[None]:
    """Let `torch.autograd.grad` return the gradients of these outputs as this rank computes them."""
    return bound(_unaveraged, _identities(outputs))


def _identities(outputs: Tensor | Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(id, [outputs] if isinstance(outputs, Tensor) else outputs))


@contextmanager
def averaging_grad(of: Callable[[], SliceGradients | None]) -> Iterator[None]:
    """Let `torch.autograd.grad` return averages for gradients of parameters.

    It looks up torch's engine in each call, also where a script has imported it before this block.
    """

    def run(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        results = original(outputs, *args, **kwargs)
        named = arguments_of_engine(args, kwargs)
        if named["accumulate_grad"] or _unaveraged.get() == _identities(outputs):
            return results
        tensors = named["inputs"]
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
            shapes = [None if gradient is None else gradient.shape for gradient in of_weights]
            before_collective("averaged", shapes)
            gradients.average(of_weights)
        return results

    with attached(declarations.AVERAGED_GRAD, wrapping(run)):
        yield


def gradients_of(
    outputs: Sequence[Tensor],
    sources: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    retain: bool,
) -> Sequence[Tensor | None]:
    """Return the gradients of sources, given those of outputs, also by reentrant activation checkpoints.

    Such a checkpoint refuses `torch.autograd.grad`, as it runs a backward of its own. That adds to the
    sources themselves; the caller lets pass what hooks would do then.
    """
    if not _is_reentrant(outputs):
        return torch.autograd.grad(outputs, sources, gradients, retain_graph=retain, allow_unused=True)
    before = [source.grad for source in sources]
    try:
        for source in sources:
            source.grad = None
        with _is_comparing.bound(value=False):
            torch.autograd.backward(outputs, gradients, retain_graph=retain)
        return [source.grad for source in sources]
    finally:
        for source, gradient in zip(sources, before, strict=True):
            source.grad = gradient


def _is_reentrant(outputs: Sequence[Tensor]) -> bool:
    """Return whether a reentrant activation checkpoint has computed a part of an output."""
    return any(type(node).__name__ == "CheckpointFunctionBackward" for node in nodes_of(outputs))


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
        # Within a backward only torch's activation checkpoint may call it, for `gradients_of`. That of
        # reversible layers adds to gradients of weights that the outer backward does not return.
        if torch._C._current_graph_task_id() == -1 or _is_comparing.get():  # noqa: SLF001 - no public spelling
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


def sparse_places(module: nn.Module, weights: Sequence[Tensor]) -> frozenset[int]:
    """Return the places of the weights of a module that may get sparse gradients."""
    sparse = {id(part.weight) for part in module_parts.modules(module) if is_sparse(part)}
    if not sparse:
        return frozenset()
    return frozenset(place for place, weight in enumerate(weights) if id(weight) in sparse)


def sums(
    world: World,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    sparse: frozenset[int],
) -> list[Tensor | None]:
    """Return the sums of gradients over the ranks on the main one; all ranks call this.

    Args:
        world: the ranks.
        weights: the weights.
        gradients: the gradient of each weight on this rank, of the weight's shape; None for zero.
        sparse: the places of weights that may get sparse gradients.

    Returns:
        the sum for each weight, in new memory; None where no rank has a gradient, and on the other ranks.
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, weight in enumerate(weights):
        if place not in sparse:
            by_kind.setdefault((weight.device, weight.dtype), []).append(place)
    result: list[Tensor | None] = [None] * len(weights)
    for places in by_kind.values():
        of_kind = _dense_sums(
            world, [weights[place] for place in places], [gradients[place] for place in places]
        )
        for place, total in zip(places, of_kind, strict=True):
            result[place] = total
    for place in sorted(sparse):
        result[place] = _of_rows(world, weights[place], gradients[place])
    return result


def _dense_sums(
    world: World, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the sums of dense gradients of one device and dtype."""
    parts = [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, gradients, strict=True)
    ]
    is_own = [gradient is not None for gradient in gradients]
    is_there = parts[0].new_ones(len(weights))
    for number in (number for number, has_gradient in enumerate(is_own) if not has_gradient):
        is_there[number] = 0
    totals = world.sum_on_main([*parts, is_there])
    if totals is None:
        return [None] * len(weights)
    # A device is read only if a gradient is missing here, which another rank may have.
    shares = is_own if all(is_own) else totals[-1].tolist()
    return [total if share else None for total, share in zip(totals[:-1], shares, strict=True)]


def _of_rows(world: World, weight: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the sum of gradients of which each rank has the rows its samples use, on the main one.

    It is dense if any rank's gradient is, as that of an embedding whose weight another layer uses.
    """
    gradients = [rows for rows in world.all_gather_objects(gradient) if rows is not None]
    if not gradients or not world.place.is_main:
        return None
    if not all(rows.is_sparse for rows in gradients):
        dense = [rows.to_dense() if rows.is_sparse else rows for rows in gradients]
        return torch.stack(dense).sum(0)
    indices = torch.cat([rows._indices() for rows in gradients], dim=1)  # noqa: SLF001 - uncoalesced
    values = torch.cat([rows._values() for rows in gradients])  # noqa: SLF001
    return torch.sparse_coo_tensor(indices, values, weight.shape, check_invariants=False)
