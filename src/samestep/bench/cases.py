"""Each collective as something to call, and what it has to give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from samestep.collectives import algorithms

Algorithm: TypeAlias = Callable[..., Any]
"""One of the registry in `samestep.collectives.algorithms`."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one resulting tensor has to be.

    Args:
        ranks: those whose tensors it is the sum of; one alone is a copy.
        start: the first element of them that it has.
    """

    ranks: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, called with any of its algorithms.

    Args:
        algorithms: by name.
        given: what each rank gives: the whole tensor, a whole of one row for each rank, or its own row.
        call: calls an algorithm with world, tensor and root; returns what this rank has then.
        expects: from rank, size, root and elements of a row to what that has to be.
        alike: whether all ranks have to end with equal bits.
    """

    algorithms: Mapping[str, Algorithm]
    given: Literal["whole", "rows", "row"]
    call: Callable[[Algorithm, Any, Tensor, int], list[Tensor]]
    expects: Callable[[int, int, int, int], list[Part]]
    alike: bool = False

    def tensor(self, nbytes: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor for a rank to give, of zeros, where the whole has at least `nbytes` bytes."""
        row = -(-nbytes // dtype.itemsize)
        if self.given != "whole":
            row = -(-row // size)
        return torch.zeros((size, row) if self.given == "rows" else row, dtype=dtype, device=device)

    def whole_bytes(self, given: Tensor, size: int) -> int:
        """Return the bytes of the whole, from what a rank gives."""
        return given.nbytes * (size if self.given == "row" else 1)


def _in_place(tensor: Tensor, result: object) -> list[Tensor]:
    assert result is None
    return [tensor]


def _everyone(size: int) -> tuple[int, ...]:
    return tuple(range(size))


COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective(
        algorithms=algorithms.ALL_REDUCE,
        given="whole",
        call=lambda algorithm, world, tensor, _: _in_place(tensor, algorithm(world, tensor, "sum")),
        expects=lambda _, size, *__: [Part(_everyone(size))],
        alike=True,
    ),
    "broadcast": Collective(
        algorithms=algorithms.BROADCAST,
        given="whole",
        call=lambda algorithm, world, tensor, root: _in_place(tensor, algorithm(world, tensor, root)),
        expects=lambda _, __, root, ___: [Part((root,))],
    ),
    "all_gather": Collective(
        algorithms=algorithms.ALL_GATHER,
        given="row",
        call=lambda algorithm, world, tensor, _: list(algorithm(world, tensor)),
        expects=lambda _, size, *__: [Part((rank,)) for rank in range(size)],
    ),
    "reduce_scatter": Collective(
        algorithms=algorithms.REDUCE_SCATTER,
        given="rows",
        call=lambda algorithm, world, tensor, _: [algorithm(world, tensor, "sum")],
        expects=lambda rank, size, _, row: [Part(_everyone(size), rank * row)],
    ),
    "reduce": Collective(
        algorithms=algorithms.REDUCE,
        given="whole",
        call=lambda algorithm, world, tensor, root: _in_place(tensor, algorithm(world, tensor, "sum", root)),
        expects=lambda rank, size, root, _: [Part(_everyone(size) if rank == root else (rank,))],
    ),
    "gather": Collective(
        algorithms=algorithms.GATHER,
        given="row",
        call=lambda algorithm, world, tensor, root: algorithm(world, tensor, root) or [],
        expects=lambda rank, size, root, _: [Part((one,)) for one in range(size) if rank == root],
    ),
    "scatter": Collective(
        algorithms=algorithms.SCATTER,
        given="rows",
        call=lambda algorithm, world, tensor, root: [algorithm(world, tensor, root)],
        expects=lambda rank, _, root, row: [Part((root,), rank * row)],
    ),
}
"""By name."""
