"""Measures one collective: checks all its algorithms at all sizes, then times them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.units import bytes_text
from samestep.ranks.collectives.direct_world import DirectWorld, by_connections
from samestep.ranks.collectives.shared_memory_world import OneHostWorld, on_one_host
from samestep.ranks.world.protocol import World
from samestep.studies.bench.cases import COLLECTIVES, Algorithm, Collective, Numbers, check
from samestep.studies.bench.figures import Row, Wrong, figures
from samestep.studies.bench.interleaving import Call, timed_interleaved
from samestep.studies.bench.request import Request, chosen
from samestep.studies.bench.time_limit import Limit

COPY = "copy"
"""The name of plain memory copies, which are timed with the algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a benchmark."""

    rows: list[Row]  # figures by size, then by algorithm
    wrong: list[Wrong]  # algorithms with wrong results, which were not timed
    copying: dict[int, float]  # copy bandwidth of each rank in bytes per second while all ranks copy, by size
    rounds: dict[int, int]  # number of rounds of each size


def perform(
    joined: World,
    request: Request,
    *,
    done: Callable[[str], object] = lambda _: None,
    give_up: Callable[[str], object] = lambda _: None,
) -> Report:
    """Run the benchmark of `request`.

    Args:
        joined: the ranks; all of them call this.
        request: collective, sizes and durations.
        done: called before each piece of work with its name; there are `pieces` of them.
        give_up: called from another thread with an algorithm that exceeds its timeout; can end the process.

    Raises:
        UsageError: there is one rank only, or an algorithm is not available.
    """
    if joined.place.size < 2:
        raise UsageError("one worker has no collectives to measure; give -n 2 or more.")
    world = on_one_host(joined)
    collective = COLLECTIVES[request.collective]
    there = [name for name in collective.algorithms if _is_available(name, joined, world)]
    names = chosen(request.algorithms, there, request.collective)
    with Limit(request.timeout_s, give_up) as limit:
        measured = _Benchmark(world, request, collective, limit)
        wrong: dict[str, Wrong] = {}
        for nbytes in request.sizes:
            done("checking")
            for name in names:
                if name not in wrong and (found := measured.wrong(name, nbytes)):
                    wrong[name] = found
        right = {name: collective.algorithms[name] for name in names if name not in wrong}
        report = Report(rows=[], wrong=list(wrong.values()), copying={}, rounds={})
        for nbytes in request.sizes if right else ():
            done("timing")
            measured.time(right, nbytes, report)
    return report


def pieces(request: Request) -> int:
    """Return the number of pieces of work."""
    return 2 * len(request.sizes)


def _is_available(name: str, joined: World, world: World) -> bool:
    """Return whether the ranks can run an algorithm; `world` is `joined`, in shared memory if possible."""
    if name == "direct":
        return isinstance(by_connections(joined), DirectWorld)
    return name != "shared_memory" or isinstance(world, OneHostWorld)


class _Benchmark:
    """The benchmark of one collective."""

    def __init__(self, world: World, request: Request, collective: Collective, limit: Limit) -> None:
        self._world, self._request, self._collective, self._limit = world, request, collective, limit
        self._dtype: torch.dtype = getattr(torch, request.dtype)
        self._numbers = Numbers(world.place.size, self._dtype)

    def _given(self, nbytes: int) -> Tensor:
        world = self._world
        return self._collective.tensor(nbytes, world.place.size, self._dtype, world.device)

    def wrong(self, name: str, nbytes: int) -> Wrong | None:
        """Return what is wrong with the result of an algorithm at one size."""
        given = self._given(nbytes)
        algorithm = self._collective.algorithms[name]
        limit = self._limit.of(f"{name} at {bytes_text(nbytes)}")
        problem = check(self._world, self._collective, algorithm, given, self._numbers, around=limit)
        return Wrong(algorithm=name, bytes=nbytes, problem=problem) if problem else None

    def time(self, right: dict[str, Algorithm], nbytes: int, report: Report) -> None:
        """Time algorithms at one size, and add the results to `report`."""
        world, size = self._world, self._world.place.size
        given = self._given(nbytes)  # zeros, since repeated sums of other numbers overflow
        whole = self._collective.whole_bytes(given, size)
        if whole in report.copying:  # two sizes can be equal once rounded up to rows
            return
        source = torch.zeros(whole, dtype=torch.uint8, device=world.device)
        target = torch.zeros_like(source)
        calls: dict[str, Call] = {
            name: partial(self._call, algorithm, given) for name, algorithm in right.items()
        }
        times = timed_interleaved(
            world,
            calls | {COPY: lambda _: target.copy_(source)},
            rounds=self._request.rounds,
            seconds=self._request.seconds,
            finish=finisher(world.device),
            around=lambda name: self._limit.of(f"{name} at {bytes_text(whole)}"),
        )
        copying = times.pop(COPY)
        for name, taken in times.items():
            row = figures(
                self._request.collective, name, nbytes=whole, ranks=size, times=taken, copying=copying
            )
            report.rows.append(row)
        report.copying[whole] = whole / median(copying)
        report.rounds[whole] = len(copying)

    def _call(self, algorithm: Algorithm, given: Tensor, number: int) -> None:
        # The root changes, so that no rank runs ahead, as a fixed root of broadcasts does.
        self._collective.call(algorithm, self._world, given, number % self._world.place.size)


def finisher(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until `device` has finished its work."""
    if device.type == "cpu":
        return lambda: None
    return partial(torch.accelerator.synchronize, device)
