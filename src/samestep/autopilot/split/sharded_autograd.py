"""Slices a batch into one part per rank, and gathers the parts, with gradients.

Each of the first two is the derivative of the other::

                      forward                          backward
    sliced            this rank's slice of x           all ranks' gradients as one
    gathered          all ranks' slices as one         this rank's slice of the gradient
    shared            x, for this rank's slice         sum of the ranks' gradients
    replicated        what each rank computes          N-th part of the gradient, for N ranks

So the sum over the ranks of the gradients of a weight is that of the whole batch. Each derivative uses these
functions again, so both can be differentiated twice.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import heappop, heappush
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from samestep.autopilot.state.reachable_state import PLAIN
from samestep.hooks.tensor_tree import leaves
from samestep.parallel.sharding import share
from samestep.ranks.world.operation import as_contiguous
from samestep.ranks.world.protocol import World


@dataclass(frozen=True, eq=False)
class BatchSplit:
    """The division of one batch into slices, one per rank."""

    world: World
    total: int  # number of samples of the batch
    of_list: bool = False
    """Whether the samples are the parts of a list: ranks then may execute different numbers of operations."""
    is_for_main: bool = False
    """Whether only the main rank uses what is gathered: others have a tensor of its shape, all zeros."""

    @cached_property
    def for_main(self) -> "BatchSplit":
        """The same division, of which only the main rank uses what is gathered."""
        return replace(self, is_for_main=True)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of samples of each rank."""
        size = self.world.place.size
        return tuple(len(share(self.total, rank, size)) for rank in range(size))

    @property
    def local(self) -> int:
        """Number of samples of this rank."""
        return self.counts[self.world.place.rank]

    @cached_property
    def start(self) -> int:
        """Index of this rank's first sample."""
        return share(self.total, self.world.place.rank, self.world.place.size).start

    def sliced(self, whole: Tensor, dim: int, *, every: int = 1) -> Tensor:
        """Return this rank's slice of `whole`, with `every` positions along `dim` for each sample."""
        if not (whole.requires_grad and torch.is_grad_enabled()):
            part = whole.narrow(dim, self.start * every, self.local * every)
            # Such as a hidden state (layers, batch, features), of which cuDNN accepts no other.
            return part.contiguous() if whole.is_contiguous() else part
        result: Tensor = _Slice.apply(whole, self, dim, every)  # type: ignore[no-untyped-call]
        return result

    def shared(self, whole: Tensor) -> Tensor:
        """Return `whole` for a computation on this rank's slice, such as a weight or a condition."""
        if not (whole.requires_grad and torch.is_grad_enabled()):
            return whole
        result: Tensor = _Share.apply(whole, self)  # type: ignore[no-untyped-call]
        return result

    def replicated(self, part: Tensor) -> Tensor:
        """Return what all ranks have computed alike, of which each has a part of the gradient."""
        if not (part.requires_grad and torch.is_grad_enabled()):
            return part
        result: Tensor = _Replicate.apply(part, self.world.place.size)  # type: ignore[no-untyped-call]
        return result

    def gathered(
        self, part: Tensor, dim: int, *, every: int = 1, order: tuple[int, ...] | None = None
    ) -> Tensor:
        """Return the ranks' slices concatenated along `dim`."""
        result: Tensor = _Gather.apply(part, self, dim, every, order)  # type: ignore[no-untyped-call]
        return result

    def summed(self, part: Tensor, weight: float = 1.0) -> Tensor:
        """Return the sum over ranks of `weight` times `part`; a part of weight 0 is ignored, even NaN."""
        result: Tensor = _Add.apply(part, self.world, weight)  # type: ignore[no-untyped-call]
        return result


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, split: BatchSplit, dim: int, every: int) -> Tensor:
        ctx.split, ctx.dim, ctx.every = split, dim, every
        return whole.narrow(dim, split.start * every, split.local * every).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.split.gathered(grad, ctx.dim, every=ctx.every), None, None, None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, split: BatchSplit) -> Tensor:
        ctx.split = split
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.split.summed(grad), None


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, size: int) -> Tensor:
        ctx.size = size
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad / ctx.size, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, split: BatchSplit, dim: int, every: int, order: tuple[int, ...] | None
    ) -> Tensor:
        ctx.split, ctx.dim, ctx.every = split, dim, every
        lengths = [count * every for count in split.counts]
        order = order or tuple(range(part.dim()))
        collect = gathered_on_main if split.is_for_main else gather
        whole = collect(split.world, part.permute(order), order.index(dim), lengths)
        if whole is None:
            shape = [*part.shape]
            shape[dim] = sum(lengths)
            return part.new_zeros(()).expand(shape)
        return whole.contiguous().permute(inverse(order))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.split.sliced(grad, ctx.dim, every=ctx.every), None, None, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, world: World, weight: float) -> Tensor:
        ctx.weight = weight
        if weight == 0:
            total = torch.zeros_like(part)
        else:
            total = part.detach().clone() if weight == 1 else part.detach() * weight
        world.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.weight, None, None  # in new memory: other ranks read the same message


class _InPlaceOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor, value: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return value.clone()  # no view, which a script may not write to

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wide = grad.to(torch.promote_types(grad.dtype, ctx.factor.dtype))
        return (wide * ctx.factor).to(grad.dtype), None, None


def in_place_of(part: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    """Return a value that replaces one of this rank, whose gradient is multiplied by a factor."""
    result: Tensor = _InPlaceOf.apply(part, value, factor)  # type: ignore[no-untyped-call]
    return result


_INPUTS = frozenset({_Slice._backward_cls, _Share._backward_cls})  # noqa: SLF001 - the types of their nodes
_ALL = _INPUTS | {
    node._backward_cls  # noqa: SLF001
    for node in (_Replicate, _Gather, _Add, _InPlaceOf)
}


def nodes_of(outputs: Iterable[Tensor]) -> Iterator[Any]:
    """Yield the nodes of the autograd graph of some outputs, each once, in the same order on all ranks."""
    roots = (output.grad_fn for output in outputs if output.grad_fn is not None)
    waiting: list[Any] = list(dict.fromkeys(roots))
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in seen:
                seen.add(next_node)
                waiting.append(next_node)


@cache
def _saves(kind: type) -> bool:
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def saving_nodes(outputs: Iterable[Tensor]) -> set[Any]:
    """Return the nodes in the graph of some outputs that save tensors, which a backward releases."""
    return {node for node in nodes_of(outputs) if _saves(node.__class__)}


def python_nodes(outputs: Iterable[Tensor]) -> list[BackwardCFunction]:
    """Return the nodes in the graph of some outputs whose backward is the script's own code."""
    return [node for node in nodes_of(outputs) if isinstance(node, BackwardCFunction)]


def keeps_objects(node: BackwardCFunction) -> bool:
    """Return whether the backward of a node has objects of forward, which the script may change."""
    plain = (*PLAIN, tuple, list, torch.dtype, torch.device)
    return any(not isinstance(value, plain) for value in vars(node).values())


def leaves_in_order(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves of a graph in the order in which a backward of all outputs comes to them."""
    roots = [*dict.fromkeys(output.grad_fn for output in outputs if output.grad_fn is not None)]
    left = Counter(after for node in nodes_of(outputs) for after, _ in node.next_functions)
    ready: list[tuple[float, int, Any]] = []
    reached: list[Tensor] = []

    def push(node: Any) -> None:
        # Autograd comes to a leaf at once, and else to the latest operation; a slice stands for its input.
        is_leaf = hasattr(node, "variable") or type(node) in _INPUTS
        heappush(ready, (-math.inf if is_leaf else -node._sequence_nr(), next(pushed), node))  # noqa: SLF001

    pushed = count()
    for root in roots:
        if not left[root]:
            push(root)
    while ready:
        *_, node = heappop(ready)
        reached += [node.variable] if hasattr(node, "variable") else []
        for after, _ in node.next_functions:
            left[after] -= 1
            if after is not None and not left[after]:
                push(after)
    return reached


def uses_split_call(outputs: Any) -> bool:
    """Return whether `outputs` were computed from those of a split call, by their autograd graph."""
    return any(type(node) in _ALL for node in nodes_of(tensor for _, tensor in leaves(outputs)))


def is_operand(tensor: Tensor, outputs: Iterable[Tensor]) -> bool:
    """Return whether outputs of a slice are computed from another one, by their autograd graph."""
    node = tensor.grad_fn
    while type(node) in _ALL:
        node = node.next_functions[0][0]  # type: ignore[union-attr]
    return node is not None and node in nodes_of(outputs)


def gather(world: World, part: Tensor, dim: int, lengths: Sequence[int]) -> Tensor:
    """Return the ranks' parts, of these lengths along `dim`, as one tensor.

    They are sent as bytes, to support all dtypes; shorter parts are padded.
    """
    flat = as_contiguous(part.movedim(dim, 0))
    of_row = flat.shape[1:]
    row = math.prod(of_row)
    message, most = flat.view(-1), max(lengths) * row
    if flat.numel() < most:
        message = torch.zeros(most, dtype=part.dtype, device=part.device)
        message[: flat.numel()] = flat.view(-1)
    parts = world.all_gather(message.view(torch.uint8))
    rows = [
        gathered.view(part.dtype)[: length * row].view(length, *of_row)
        for gathered, length in zip(parts, lengths, strict=True)
    ]
    return torch.cat(rows).movedim(0, dim)


def gathered_on_main(world: World, part: Tensor, dim: int, lengths: Sequence[int]) -> Tensor | None:
    """Return what `gather` does on the main rank, and None on the others."""
    flat = as_contiguous(part.movedim(dim, 0))
    whole, targets = None, None
    if world.place.is_main:
        whole = flat.new_empty((sum(lengths), *flat.shape[1:]))
        targets = [rows.view(-1).view(torch.uint8) for rows in torch.split(whole, [*lengths])]
    most = max(lengths) * math.prod(flat.shape[1:]) * flat.element_size()
    world.gather_on_main(flat.view(-1).view(torch.uint8), targets, most)
    return None if whole is None else whole.movedim(0, dim)


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a tensor, outermost in memory first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes `order`."""
    return sorted(range(len(order)), key=order.__getitem__)
