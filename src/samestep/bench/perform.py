"""Measuring one collective: all its algorithms at all sizes, first whether they are right, then how fast."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.base.units import bytes_text
from samestep.bench.cases import COLLECTIVES, Algorithm, Collective
from samestep.bench.correct import Numbers, check
from samestep.bench.figures import Row, Wrong, figures
from samestep.bench.limit import Limit
from samestep.bench.request import Request, chosen
from samestep.bench.rounds import Call, in_turns
from samestep.collectives.one_host import OneHostWorld, on_one_host
from samestep.world.world import World

COPY = "copy"
"""The name under which plain copying is timed beside the algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was measured.

    Args:
        rows: by size, then by algorithm.
        wrong: algorithms that were not timed.
        copying: bytes per second at which each rank copies memory while all do, by size.
        rounds: of each size.
    """

    rows: list[Row]
    wrong: list[Wrong]
    copying: dict[int, float]
    rounds: dict[int, int]


def perform(
    joined: World,
    request: Request,
    *,
    done: Callable[[str], object] = lambda _: None,
    give_up: Callable[[str], object] = lambda _: None,
) -> Report:
    """Measure what `request` asks for.

    Args:
        joined: the ranks; all of them call this.
        request: what.
        done: told before each piece of work what it is; there are `pieces` of them.
        give_up: told, from another thread, which algorithm does not end; it may end the process.

    Raises:
        UsageError: one rank is alone, or an algorithm is not there.
    """
    if joined.place.size < 2:
        raise UsageError("one worker exchanges nothing: give -n 2 or more, or start several tasks.")
    world = on_one_host(joined)
    collective = COLLECTIVES[request.collective]
    there = [
        name for name in collective.algorithms if name != "shared_memory" or isinstance(world, OneHostWorld)
    ]
    names = chosen(request.algorithms, there, request.collective)
    with Limit(request.timeout_s, give_up) as limit:
        measured = _Measured(world, request, collective, limit)
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
    """Return how many pieces of work there are."""
    return 2 * len(request.sizes)


class _Measured:
    """One collective among some ranks."""

    def __init__(self, world: World, request: Request, collective: Collective, limit: Limit) -> None:
        self._world, self._request, self._collective, self._limit = world, request, collective, limit
        self._dtype: torch.dtype = getattr(torch, request.dtype)
        self._numbers = Numbers(world.place.size, self._dtype)

    def _given(self, nbytes: int) -> Tensor:
        world = self._world
        return self._collective.tensor(nbytes, world.place.size, self._dtype, world.device)

    def wrong(self, name: str, nbytes: int) -> Wrong | None:
        """Return what is wrong with an algorithm at one size."""
        given = self._given(nbytes)
        algorithm = self._collective.algorithms[name]
        limit = self._limit.of(f"{name} at {bytes_text(nbytes)}")
        problem = check(self._world, self._collective, algorithm, given, self._numbers, around=limit)
        return Wrong(algorithm=name, bytes=nbytes, problem=problem) if problem else None

    def time(self, right: dict[str, Algorithm], nbytes: int, report: Report) -> None:
        """Time algorithms at one size, and add what came of it to `report`."""
        world, size = self._world, self._world.place.size
        given = self._given(nbytes)  # of zeros: sums of sums of others would soon be infinite
        whole = self._collective.whole_bytes(given, size)
        if whole in report.copying:  # two sizes may be one, rounded up to rows
            return
        source = torch.zeros(whole, dtype=torch.uint8, device=world.device)
        target = torch.zeros_like(source)
        calls: dict[str, Call] = {
            name: partial(self._call, algorithm, given) for name, algorithm in right.items()
        }
        times = in_turns(
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
        # With a root that changes no rank runs ahead of the others, as the root of broadcasts would.
        self._collective.call(algorithm, self._world, given, number % self._world.place.size)


def finisher(device: torch.device) -> Callable[[], object]:
    """Return what returns once `device` has done all that it was told."""
    if device.type == "cpu":
        return lambda: None
    return partial(torch.accelerator.synchronize, device)
