"""Generates test tensors for a collective, and the exact results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samestep.ranks.world.operation import Op

ODD = (7,)
SHAPES = ((1,), (3, 5), (), (0,))
COUNTED = (3 * 16384 + 5,)
"""Shape of the tensor whose sent bytes are counted: large compared with headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of a collective on all ranks."""

    inputs: tuple[Tensor, ...]  # each rank's tensor
    root: int = 0  # the rank that others send to, or receive from
    op: Op = "sum"  # the operation
    strided: bool = False  # whether tensors have gaps in memory
    transposed: bool = False  # whether tensors are transposed views of contiguous ones
    counted: bool = False  # whether the bytes that ranks send are checked

    def input(self, rank: int) -> Tensor:
        """Return a new copy of a rank's tensor."""
        tensor = self.inputs[rank]
        if self.transposed:
            return tensor.mT.clone(memory_format=torch.contiguous_format).mT
        return torch.stack([tensor, tensor], dim=-1)[..., 1] if self.strided else tensor.clone()

    def describe(self, *, reduces: bool, rooted: bool) -> str:
        """Return the call in words for messages."""
        first = self.inputs[0]
        return " ".join(
            [f"{self.op} of"] * reduces
            + [str(first.dtype).removeprefix("torch."), str(list(first.shape))]
            + ["(not contiguous)"] * self.strided
            + ["(transposed)"] * self.transposed
            + [f"root {self.root}"] * rooted
        )


def cases(
    size: int,
    *,
    ops: Sequence[Op],
    dtypes: Sequence[torch.dtype],
    roots: Sequence[int],
    rows: bool,
    any_layout: bool,
) -> Iterator[Case]:
    """Yield the calls that test a collective; the first of `dtypes` is tested with all roots and shapes.

    With `rows`, tensors have one row per rank; with `any_layout`, some are not contiguous.
    """
    head = (size,) if rows else ()

    def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(random_tensor(rank, (*head, *shape), dtype) for rank in range(size))

    op, dtype = ops[0], dtypes[0]
    counted = (COUNTED[0] // size,) if rows else COUNTED
    yield Case(inputs=inputs(counted, dtype), op=op, root=roots[0], counted=True)
    for op in ops:
        for dtype in dtypes:
            if op != "mean" or dtype.is_floating_point:
                yield Case(inputs=inputs(ODD, dtype), op=op, root=roots[-1])
    op, dtype = ops[0], dtypes[0]
    for root in roots[:-1]:
        yield Case(inputs=inputs(ODD, dtype), op=op, root=root)
    for shape in (*SHAPES, (4 * size,)):  # the last one divides evenly among ranks
        yield Case(inputs=inputs(shape, dtype), op=op, root=roots[0])
    if not any_layout:
        return
    yield Case(inputs=inputs((3, 5), dtype), op=op, root=roots[0], strided=True)
    yield Case(inputs=inputs((3, 5), dtype), op=op, root=roots[0], transposed=True)


def random_tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a rank's tensor: floats whose sum depends on the order, or small integers."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) + rank + 1).to(dtype)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def reduced(inputs: Sequence[Tensor], op: Op) -> Tensor:
    """Return the reduction of all tensors in float64, or of integers in int64."""
    kind = torch.float64 if inputs[0].dtype.is_floating_point else torch.int64
    stack = torch.stack([each.to(kind) for each in inputs])
    if op == "mean":
        return stack.mean(0)
    if op == "product":
        return stack.prod(0)
    return stack.sum(0) if op == "sum" else stack.amin(0) if op == "min" else stack.amax(0)


def tolerance(inputs: Sequence[Tensor], op: Op) -> Tensor | float:
    """Return the largest error of a reduction, by element, for any order of summation."""
    dtype = inputs[0].dtype
    if op in ("min", "max") or not dtype.is_floating_point:
        return 0.0
    size, eps = len(inputs), torch.finfo(dtype).eps
    if op == "product":
        return reduced(inputs, op).abs() * (size * eps)
    total = torch.stack([each.double().abs() for each in inputs]).sum(0)
    return total * ((size + 1) * eps / (size if op == "mean" else 1))
