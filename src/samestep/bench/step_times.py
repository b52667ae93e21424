"""Times training steps by gradient synchronizer, against the same workers without communication."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from samestep.bench.figures import Spread, quartiles
from samestep.bench.interleaving import in_rounds, rounds_within
from samestep.bench.measurement import finisher
from samestep.bench.request import ALONE
from samestep.bench.synchronizers import WAYS, Problem, Trainee
from samestep.ranks.collectives.shared_memory_world import on_one_host
from samestep.ranks.world.protocol import World

WARM_UP = 2
"""Steps before a block is timed: the first all-reduces of `bucketed` do not overlap."""
BLOCK_S, MOST_STEPS = 0.5, 20


@dataclass(frozen=True, slots=True)
class StepRow:
    """The figures of one gradient synchronizer."""

    model: str
    batch_per_worker: int
    workers: int
    sync: str
    step_s: float  # median over rounds of the slowest rank's step, in seconds
    exposed_sync_s: float | None  # seconds of exposed communication in a step; None where unknown
    efficiency: float  # step time without communication divided by this one; median over rounds
    efficiency_quartiles: Spread  # over rounds


def measure(
    world: World,
    problem: Problem,
    names: Sequence[str],
    *,
    seconds: float,
    done: Callable[[str, int | None], object] = lambda _name, _total: None,
) -> list[StepRow]:
    """Return the step time of each synchronizer, measured interleaved; `alone` is included.

    Args:
        world: the ranks; all of them call this.
        problem: the model and data.
        names: keys of `WAYS`.
        seconds: approximate time to measure for.
        done: called before each block with its name, and with the number of blocks, once it is known.
    """
    names = [ALONE, *(name for name in names if name != ALONE)]
    near, finish = on_one_host(world), finisher(world.device)
    worlds = {name: near if name == "flat" else world for name in names}
    trainees = {name: Trainee(problem, world) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float | None]] = {name: [] for name in names}

    def block(name: str, count: int, total: int | None = None) -> float:
        done(name, total)
        with WAYS[name](trainees[name], worlds[name]) as step:
            for _ in range(WARM_UP):
                step()
            world.barrier()
            began = time.perf_counter()
            waited = [step() for _ in range(count)]
            finish()
            taken = (time.perf_counter() - began) / count
        seen = [one for one in waited if one is not None]
        waits[name].append(sum(seen) / len(seen) if seen else None)
        return _slowest(world, taken)

    first = {name: block(name, 1) for name in names}
    waits = {name: [] for name in names}
    counts = {name: max(1, min(MOST_STEPS, round(BLOCK_S / first[name]))) for name in names}
    whole = sum(first[name] * (counts[name] + WARM_UP) for name in names)
    rounds = rounds_within(seconds, whole)
    for name in in_rounds(names, rounds):
        times[name].append(block(name, counts[name], len(names) * (1 + rounds)))
    return [_row(world, problem, name, times, waits[name]) for name in names]


def _row(
    world: World, problem: Problem, name: str, times: Mapping[str, list[float]], waits: list[float | None]
) -> StepRow:
    seen = [one for one in waits if one is not None]
    ratios = [alone / taken for alone, taken in zip(times[ALONE], times[name], strict=True)]
    return StepRow(
        model=problem.model,
        batch_per_worker=problem.batch_per_worker,
        workers=world.place.size,
        sync=name,
        step_s=median(times[name]),
        exposed_sync_s=_slowest(world, median(seen)) if seen else None,
        efficiency=median(ratios),
        efficiency_quartiles=quartiles(ratios),
    )


def _slowest(world: World, taken: float) -> float:
    """Return the largest value over the ranks."""
    largest = torch.tensor([taken], dtype=torch.float64, device=world.device)
    world.all_reduce(largest, op="max")
    return float(largest.item())
