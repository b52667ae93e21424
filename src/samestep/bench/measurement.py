"""Times all algorithms of one collective, size by size: calls that are interleaved in rounds, on all ranks.

The load of a machine changes over seconds and affects interleaved calls alike. Each round runs a block of
every call and begins with another one::

    round 0    native  ring  shared_memory
    round 1    ring  shared_memory  native
    round 2    shared_memory  native  ring

A block is a barrier and as many calls as take about `BLOCK_S`, so that the moment at which a rank leaves the
barrier does not matter.

`native` calls the back end, `direct` uses direct connections between processes with Gloo, and `shared_memory`
the shared memory of one host, which takes a world of `on_one_host`. The other two accept such a world too.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.units import bytes_text
from samestep.bench.figures import Request, Row, figures, slowest
from samestep.ranks.collectives.direct import RANKS, DirectWorld, by_connections
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep.ranks.world.protocol import World

T = TypeVar("T")
Call: TypeAlias = Callable[[int], object]
"""A call to time; its argument counts the calls of the block from 0."""

BLOCK_S = 1e-3
"""Seconds of a block, much longer than the difference between ranks that leave a barrier."""
MOST_CALLS = 200
"""Most calls of a block, however short they are."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 200
"""Rounds: three have quartiles, and more than 200 do not change them."""


def rounds_within(seconds: float, each: float) -> int:
    """Return how many rounds of `each` seconds are measured in `seconds`."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / each)))


def in_rounds(names: Sequence[T], rounds: int) -> Iterator[T]:
    """Yield all names in each round, which begins with another name than the round before."""
    for number in range(rounds):
        first = number % len(names)
        yield from (*names[first:], *names[:first])


def timed_interleaved(
    world: World,
    calls: Mapping[str, Call],
    *,
    seconds: float,
    finish: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per call on the slowest rank, by name, one for each round.

    Args:
        world: the ranks; all of them call this.
        calls: the calls to time by name; the same on all ranks.
        seconds: time to measure for; there are at least `LEAST_ROUNDS` rounds.
        finish: waits until the device has finished.
        clock: returns seconds.
    """

    def block(name: str) -> float:
        call, count = calls[name], counts[name]
        world.barrier()
        begin = clock()
        for number in range(count):
            call(number)
        finish()
        return (clock() - begin) / count

    counts = dict.fromkeys(calls, 1)
    # The first calls set things up, and in the second ones the ranks do not begin at once: neither counts.
    for number in range(3):
        of_ranks = world.all_gather_objects({name: block(name) for name in calls})
        taken = {name: max(of_rank[name] for of_rank in of_ranks) for name in calls}
        counts = {name: max(1, min(MOST_CALLS, round(BLOCK_S / max(taken[name], 1e-9)))) for name in calls}
        if number and max(counts.values()) == 1:
            break
    rounds = rounds_within(seconds, sum(taken[name] * counts[name] for name in calls))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in in_rounds(list(calls), rounds):
        times[name].append(block(name))
    every = world.all_gather_objects(times)
    return {name: slowest([of_rank[name] for of_rank in every]) for name in calls}


Algorithm: TypeAlias = Callable[..., Any]
"""A way of a collective: the back end's own, direct connections between processes, or one host's memory."""


def native(world: World) -> World:
    """Return the world whose collectives are those of the back end."""
    return world.inner if isinstance(world, OneHostWorld | DirectWorld) else world


def shared_memory(world: World) -> World:
    """Return `world` if its collectives use shared memory, or if it has one rank.

    Raises:
        UsageError: they do not.
    """
    if world.place.size > 1 and not isinstance(world, OneHostWorld):
        raise UsageError(
            "shared_memory takes a world of "
            "samestep.ranks.collectives.shared_memory.on_one_host(world), "
            "which these ranks cannot make: they share no memory. Choose another algorithm."
        )
    return world


def direct(world: World) -> DirectWorld:
    """Return the world of the same ranks with direct connections; all ranks call this.

    Raises:
        UsageError: they cannot have any.
    """
    connected = world if isinstance(world, DirectWorld) else by_connections(native(world))
    if not isinstance(connected, DirectWorld):
        raise UsageError(
            f"direct takes 2 to {RANKS} processes that Gloo connects, with tensors on the CPU. "
            "Choose another algorithm."
        )
    return connected


ALL_REDUCE: Mapping[str, Algorithm] = {
    "native": lambda world, tensor, op: native(world).all_reduce(tensor, op=op),
    "direct": lambda world, tensor, op: direct(world).reduce_directly(tensor, op),
    "shared_memory": lambda world, tensor, op: shared_memory(world).all_reduce(tensor, op=op),
}
"""Each takes a world, the tensor to change, and an operation."""
BROADCAST: Mapping[str, Algorithm] = {
    "native": lambda world, tensor, src: native(world).broadcast(tensor, src),
    "shared_memory": lambda world, tensor, src: shared_memory(world).broadcast(tensor, src),
}
"""Each takes a world, the tensor to change, and the source rank."""
ALL_GATHER: Mapping[str, Algorithm] = {
    "native": lambda world, tensor: native(world).all_gather(tensor),
    "direct": lambda world, tensor: direct(world).gather_directly(tensor),
    "shared_memory": lambda world, tensor: shared_memory(world).all_gather(tensor),
}
"""Each takes a world and a tensor, and returns the tensors of all ranks."""


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
        algorithms=ALL_REDUCE,
        part="whole",
        call=lambda algorithm, world, tensor, _: algorithm(world, tensor, "sum"),
    ),
    "broadcast": Collective(
        algorithms=BROADCAST,
        part="whole",
        call=lambda algorithm, world, tensor, root: algorithm(world, tensor, root),
    ),
    "all_gather": Collective(
        algorithms=ALL_GATHER,
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
