"""Defines how each collective is called and which result is right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from samestep.ranks.collectives import algorithms
from samestep.ranks.world.operation import Op
from samestep.ranks.world.protocol import World
from samestep.testing.calls import bind
from samestep.testing.own_function import load_function

Algorithm: TypeAlias = Callable[..., Any]
"""An entry of `samestep.ranks.collectives.algorithms`."""


@dataclass(frozen=True, slots=True)
class Part:
    """The expected content of one resulting tensor."""

    ranks: tuple[int, ...]  # ranks whose tensors it sums; a single rank means a copy
    start: int = 0  # index of its first element in those tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, called with any of its algorithms."""

    algorithms: Mapping[str, Algorithm]  # by name
    # input of each rank: the whole tensor, a tensor with one row per rank, or its own row
    given: Literal["whole", "rows", "row"]
    # calls an algorithm with world, tensor and root; returns the results of this rank
    call: Callable[[Algorithm, Any, Tensor, int], list[Tensor]]
    # returns the expected results for rank, size, root and elements of a row
    expects: Callable[[int, int, int, int], list[Part]]
    alike: bool = False  # whether the results of all ranks must have equal bits

    def tensor(self, nbytes: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an input tensor of zeros, so that the whole has at least `nbytes` bytes."""
        row = -(-nbytes // dtype.itemsize)
        if self.given != "whole":
            row = -(-row // size)
        return torch.zeros((size, row) if self.given == "rows" else row, dtype=dtype, device=device)

    def whole_bytes(self, given: Tensor, size: int) -> int:
        """Return the bytes of the whole from the input of a rank."""
        return given.nbytes * (size if self.given == "row" else 1)


def _in_place(tensor: Tensor, result: object) -> list[Tensor]:
    assert result is None
    return [tensor]


def _all_ranks(size: int) -> tuple[int, ...]:
    return tuple(range(size))


def own_algorithm(text: str) -> dict[str, Algorithm]:
    """Return the all-reduce that ``FILE:FUNCTION`` names, by the text without its folders.

    Its parameters are bound as those of `samestep.testing`; the ranks' process group is the default one.

    Raises:
        UsageError: there is no such function, or it has unknown parameters.
    """
    call = bind(load_function(text))

    def all_reduce(world: World, tensor: Tensor, op: Op) -> None:
        returned = call(tensor, world=algorithms.native(world), root=0, op=op)
        if isinstance(returned, Tensor):
            tensor.copy_(returned)

    return {Path(text).name: all_reduce}


COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective(
        algorithms=algorithms.ALL_REDUCE,
        given="whole",
        call=lambda algorithm, world, tensor, _: _in_place(tensor, algorithm(world, tensor, "sum")),
        expects=lambda _, size, *__: [Part(_all_ranks(size))],
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
        expects=lambda rank, size, _, row: [Part(_all_ranks(size), rank * row)],
    ),
    "reduce": Collective(
        algorithms=algorithms.REDUCE,
        given="whole",
        call=lambda algorithm, world, tensor, root: _in_place(tensor, algorithm(world, tensor, "sum", root)),
        expects=lambda rank, size, root, _: [Part(_all_ranks(size) if rank == root else (rank,))],
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
"""The collectives by name."""
