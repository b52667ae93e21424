"""Times all algorithms of one collective, size by size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.units import bytes_text
from samestep.bench.figures import Row, figures
from samestep.bench.interleaving import Call, timed_interleaved
from samestep.bench.request import Request
from samestep.ranks.collectives import algorithms
from samestep.ranks.collectives.direct import DirectWorld, by_connections
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep.ranks.world.protocol import World

Algorithm: TypeAlias = Callable[..., Any]
"""An entry of `samestep.ranks.collectives.algorithms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, called with any of its algorithms."""

    algorithms: Mapping[str, Algorithm]  # by name
    part: Literal["whole", "row"]  # input of each rank: the whole tensor, or its own row of it
    # calls an algorithm with world, tensor and root
    call: Callable[[Algorithm, Any, Tensor, int], object]

    def tensor(self, nbytes: int, size: int, device: torch.device) -> Tensor:
        """Return an input tensor of zeros in float32, so that the whole has at least `nbytes` bytes."""
        row = -(-nbytes // torch.float32.itemsize)
        if self.part != "whole":
            row = -(-row // size)
        return torch.zeros(row, device=device)

    def whole_bytes(self, tensor: Tensor, size: int) -> int:
        """Return the bytes of the whole from the input of a rank."""
        return tensor.nbytes * (size if self.part == "row" else 1)


COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective(
        algorithms=algorithms.ALL_REDUCE,
        part="whole",
        call=lambda algorithm, world, tensor, _: algorithm(world, tensor, "sum"),
    ),
    "broadcast": Collective(
        algorithms=algorithms.BROADCAST,
        part="whole",
        call=lambda algorithm, world, tensor, root: algorithm(world, tensor, root),
    ),
    "all_gather": Collective(
        algorithms=algorithms.ALL_GATHER,
        part="row",
        call=lambda algorithm, world, tensor, _: algorithm(world, tensor),
    ),
}
"""The collectives by name."""


def perform(
    joined: World,
    request: Request,
    algorithms: Mapping[str, Algorithm] | None = None,
    *,
    done: Callable[[str], object] = lambda _: None,
) -> list[Row]:
    """Return the figures of each algorithm at each size of `request`.

    Args:
        joined: the ranks; all of them call this.
        request: collective, sizes and durations.
        algorithms: those to measure, by name; by default all of the collective.
        done: called before each size with its name.

    Raises:
        UsageError: there is one rank only.
    """
    ranks = joined.place.size
    if ranks < 2:
        raise UsageError("one worker has no collectives to measure; give -n 2 or more.")
    world, collective = on_one_host(joined), COLLECTIVES[request.collective]
    if algorithms is None:
        algorithms = collective.algorithms
    here = {name: algorithm for name, algorithm in algorithms.items() if _is_available(name, joined, world)}
    rows: dict[int, list[Row]] = {}
    for size in request.sizes:
        # Buffers hold zeros, since repeated sums of other numbers overflow.
        tensor = collective.tensor(size, ranks, world.device)
        nbytes = collective.whole_bytes(tensor, ranks)
        done(bytes_text(nbytes))
        if nbytes in rows:  # two sizes can be equal once rounded up to rows
            continue
        calls: dict[str, Call] = {
            name: partial(_call, collective, algorithm, world, tensor) for name, algorithm in here.items()
        }
        times = timed_interleaved(world, calls, seconds=request.seconds, finish=finisher(world.device))
        rows[nbytes] = [
            figures(request.collective, name, nbytes=nbytes, ranks=ranks, times=taken)
            for name, taken in times.items()
        ]
    return [row for of_size in rows.values() for row in of_size]


def _is_available(name: str, joined: World, world: World) -> bool:
    """Return whether the ranks can run an algorithm; `world` is `joined`, in shared memory if possible."""
    if name == "direct":
        return isinstance(by_connections(joined), DirectWorld)
    return name != "shared_memory" or isinstance(world, OneHostWorld)


def _call(collective: Collective, algorithm: Algorithm, world: World, tensor: Tensor, number: int) -> None:
    # The root changes, so that no rank runs ahead, as a fixed root of broadcasts does.
    collective.call(algorithm, world, tensor, number % world.place.size)


def finisher(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until `device` has finished its work."""
    if device.type == "cpu":
        return lambda: None
    return partial(torch.accelerator.synchronize, device)
