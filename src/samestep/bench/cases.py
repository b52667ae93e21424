"""Defines how each collective is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from samestep.ranks.collectives import algorithms

Algorithm: TypeAlias = Callable[..., Any]
"""An entry of `samestep.ranks.collectives.algorithms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, called with any of its algorithms."""

    algorithms: Mapping[str, Algorithm]  # by name
    given: Literal["whole", "row"]  # input of each rank: the whole tensor, or its own row of it
    # calls an algorithm with world, tensor and root
    call: Callable[[Algorithm, Any, Tensor, int], object]

    def tensor(self, nbytes: int, size: int, device: torch.device) -> Tensor:
        """Return an input tensor of zeros in float32, so that the whole has at least `nbytes` bytes."""
        row = -(-nbytes // torch.float32.itemsize)
        if self.given != "whole":
            row = -(-row // size)
        return torch.zeros(row, device=device)

    def whole_bytes(self, tensor: Tensor, size: int) -> int:
        """Return the bytes of the whole from the input of a rank."""
        return tensor.nbytes * (size if self.given == "row" else 1)


COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective(
        algorithms=algorithms.ALL_REDUCE,
        given="whole",
        call=lambda algorithm, world, tensor, _: algorithm(world, tensor, "sum"),
    ),
    "broadcast": Collective(
        algorithms=algorithms.BROADCAST,
        given="whole",
        call=lambda algorithm, world, tensor, root: algorithm(world, tensor, root),
    ),
    "all_gather": Collective(
        algorithms=algorithms.ALL_GATHER,
        given="row",
        call=lambda algorithm, world, tensor, _: algorithm(world, tensor),
    ),
}
"""The collectives by name."""
