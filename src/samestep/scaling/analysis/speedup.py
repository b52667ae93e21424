"""Relates points to each other: measured scaling mode, speedup, efficiency, overhead by cause, and the knee.

On CPUs one process can compute on all cores of several workers. A speedup is over the fastest one worker on
at most the cores of the workers, since that is what a user has without samestep. Efficiency, overhead and
the knee are about more workers that are all alike: they are against one worker like each of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median_low
from typing import Any, NamedTuple

from samestep.scaling.analysis.points import of_ratio, same_batch
from samestep.scaling.analysis.study import PHASES, Interval, Loss, Mode, Point, Rank, is_vague, known

AS_FAST = 1.05
"""The largest speedup over one process with several workers' cores that is reported as no faster."""

CLEARLY = 3.0
"""The smallest factor between all runs of two points that decides which is faster, whatever the intervals."""

_MODES: tuple[Mode, ...] = ("strong", "weak", "neither")
# The phases in which a rank waits for no other.
_OWN = tuple(name for name in PHASES if name != "exposed_sync")
_MOSTLY = 0.5  # the smallest part of all waiting that a rank must cause to be named as the straggler


def relate(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return `points` with mode, speedup and efficiency, by mode, variant and workers.

    A point is in both modes if it fits both, since there can be several baselines.
    """
    variants: dict[str, list[Point]] = {}
    for point in {_identity(point): point for point in points}.values():
        variants.setdefault(point.variant, []).append(point)
    by_mode = [_by_mode(group) for group in variants.values()]
    return tuple(chain.from_iterable(series.get(mode, ()) for mode in _MODES for series in by_mode))


def series_of(points: Iterable[Point]) -> dict[tuple[Mode, str], list[Point]]:
    """Return `points` by mode and variant, each by workers, in the order of `points`."""
    series: dict[tuple[Mode, str], list[Point]] = {}
    for point in points:
        series.setdefault((point.mode, point.variant), []).append(point)
    return {key: sorted(group, key=lambda point: point.workers) for key, group in series.items()}


def over_one_process(
    points: Sequence[Point], one_process: Sequence[Point]
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """Return related `points`, and one worker with the cores of several, with the speedup over the fastest.

    That is the fastest one worker on at most the cores of a point on one node.
    """
    compared: list[Point] = []
    related: dict[tuple[str, int], Point] = {}
    for series in series_of(points).values():
        base, alone = series[0], one_process_of(series, one_process)
        more = [_related(base.mode, base, process) for process in alone]
        more = [replace(process, efficiency=process.speedup / process.cores_of) for process in more]
        compared += [_over_fastest(point, [base, *more]) for point in series]
        related |= {
            (process.variant, process.cores_of): _over_fastest(process, [base, *more]) for process in more
        }
    kept = (related.get((process.variant, process.cores_of), process) for process in one_process)
    return tuple(compared), tuple(kept)


def one_process_of(series: Sequence[Point], one_process: Iterable[Point]) -> list[Point]:
    """Return the points of one worker with the cores of several that `series` is compared with, by cores."""
    base = series[0]
    alone = [
        process for process in one_process if process.variant == base.variant and process.device == "cpu"
    ]
    return sorted(alone, key=lambda process: process.cores_of) if base.workers == 1 else []


def over(point: Point, process: Point) -> Point:
    """Return `point` with the speedup over `process`, one worker with the cores of several."""
    low, high = (point is not process and rate_ratio(point, process)) or (None, None)
    return replace(
        point,
        speedup=point.samples_per_second / process.samples_per_second,
        speedup_low=low,
        speedup_high=high,
        baseline_cores_of=process.cores_of,
    )


class AsFast(NamedTuple):
    """One process that is as fast as all numbers of workers; `workers` is the fastest of these, over it."""

    workers: Point
    is_certain: bool
    is_open: bool  # whether the runs differ too much for a conclusion


def threads_as_fast(series: Sequence[Point], one_process: Sequence[Point]) -> AsFast | None:
    """Return the comparison if one process is as fast as all larger numbers of workers; otherwise None.

    The fastest process is compared with the fastest workers, since a user without samestep gives one process
    all cores, however many workers are measured. Workers on several nodes have cores that a process lacks.
    """
    base, *larger = fair(series) or series
    alone = one_process_of(series, one_process)
    if not larger or not alone or any(point.nodes > 1 for point in larger):
        return None
    process, workers = (max(points, key=lambda point: point.samples_per_second) for points in (alone, larger))
    if process.samples_per_second < base.samples_per_second:
        return None  # the one worker like each is the better baseline, and speedups are over it
    if workers.samples_per_second > AS_FAST * process.samples_per_second:
        return None
    undecided = [rate_ratio(point, process) for point in larger if slower_by(point, process) is None]
    ends = [interval for interval in undecided if interval is not None]
    is_certain = len(ends) == len(undecided) and all(high <= AS_FAST for _, high in ends)
    is_open = any(is_vague(interval) and interval[1] > AS_FAST for interval in ends)
    return AsFast(over(workers, process), is_certain, is_open)


def slower_by(point: Point, baseline: Point) -> float | None:
    """Return by which factor the fastest run of `point` is slower than the slowest run of `baseline`.

    It is None if the runs do not decide that `point` is slower. They do if the factor is at least `CLEARLY`,
    and at least the factor between the repeats of either point: to reverse the order, a further repeat would
    have to differ from the others by more than any of them did. Student's interval of two or three runs does
    not show that, since it is wide however far apart the two points are.
    """
    if min(len(point.runs), len(baseline.runs)) < 2:
        return None
    factor = min(baseline.runs) / max(point.runs)
    spread = max(max(measured.runs) / min(measured.runs) for measured in (point, baseline))
    return factor if factor >= max(CLEARLY, spread) else None


def baseline_of(point: Point, base: Point, one_process: Iterable[Point]) -> Point:
    """Return the one worker that the speedup of `point` is over: `base`, or the process with more cores."""
    alone = one_process_of([base], one_process)
    return next((process for process in alone if process.cores_of == point.baseline_cores_of), base)


def same_threads(series: Sequence[Point]) -> list[Point]:
    """Return the points of one mode and variant with the speedup over the first: one worker like each."""
    return [_related(point.mode, series[0], point) for point in series]


def is_faster(point: Point, base: Point) -> bool:
    """Return whether `point` is faster than the one worker that its speedup is over."""
    return point.speedup > least_speedup(point, base)


def least_speedup(point: Point, base: Point) -> float:
    """Return the speedup above which `point` is faster than the one worker that this is over."""
    return base.workers * (AS_FAST if point.baseline_cores_of > 1 else 1.0)


def fair(points: Iterable[Point]) -> list[Point]:
    """Return `points` without those that are oversubscribed, whose times depend on the scheduling."""
    return [point for point in points if not point.oversubscribed]


def knee(points: Sequence[Point]) -> int | None:
    """Return the workers with the highest speedup times efficiency; None if these are the most workers.

    Beyond, a further worker costs a larger share of efficiency than it brings of speedup (Eager, Zahorjan and
    Lazowska, "Speedup versus efficiency in parallel systems", 1989). By Amdahl that is at (1 - s) / s. The
    points are of one mode and variant, by workers; an oversubscribed baseline has no knee.
    """
    if points and points[0].oversubscribed:
        return None
    usable = fair(points)
    faster = [point for point in usable if point is points[0] or is_faster(point, points[0])]
    # Speedup times efficiency, both against one worker like each.
    best = max(faster, key=lambda point: point.workers * point.efficiency**2, default=None)
    return None if best is None or best is usable[-1] else best.workers


def rate_ratio(a: Point, b: Point) -> Interval | None:
    """Return the interval of the rate of `a` divided by that of `b`; None if one has no interval."""
    return of_ratio(a.samples_per_second, b.samples_per_second, _interval(a), _interval(b))


def _interval(point: Point) -> Interval | None:
    return known(point.samples_per_second_low, point.samples_per_second_high)


def _identity(point: Point) -> tuple[object, ...]:
    """Return the identity of a point, which is the same for a point that is in two modes."""
    mode = point.mode if point.global_batch is None else None
    return point.workers, point.variant, point.global_batch, point.samples_per_second, mode


def _by_mode(points: Sequence[Point]) -> dict[Mode, list[Point]]:
    """Return the points of one variant by mode, each mode with its own baseline first."""
    points = sorted(points, key=lambda point: point.workers)
    bases = [point for point in points if point.workers == points[0].workers]
    modes: dict[Mode, list[Point]] = {}
    for mode in ("strong", "weak"):
        # Without a known batch, the baselines of a mode are those of that mode, if there are any.
        candidates = [base for base in bases if base.global_batch is None and base.mode == mode] or bases
        largest = max(
            ([base, *(point for point in points if _is_of_mode(mode, base, point))] for base in candidates),
            key=len,
        )
        if len(largest) > 1:
            modes[mode] = largest
    if len(bases) == len(points):
        modes["strong"] = bases[:1]
    placed = list(chain.from_iterable(modes.values()))
    left = [point for point in points if point not in placed]
    if left:
        modes["neither"] = left if left[0] in bases else [bases[0], *left]
    return {mode: [_related(mode, series[0], point) for point in series] for mode, series in modes.items()}


def _is_of_mode(mode: Mode, base: Point, point: Point) -> bool:
    """Return whether a point has more workers than `base`, and the batch of a mode."""
    if point.workers <= base.workers:
        return False
    if base.global_batch is None or point.global_batch is None:
        return point.mode == mode
    times = point.workers / base.workers if mode == "weak" else 1.0
    return same_batch(point.global_batch, base.global_batch * times)


def _related(mode: Mode, base: Point, point: Point) -> Point:
    speedup = point.samples_per_second / base.samples_per_second * base.workers
    between = rate_ratio(point, base) if point.workers > base.workers else None
    low, high = (None, None) if between is None else (end * base.workers for end in between)
    return replace(
        point,
        mode=mode,
        baseline_cores_of=1,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        efficiency=speedup / point.workers,
    )


def _over_fastest(point: Point, alone: Sequence[Point]) -> Point:
    """Return `point` with the speedup over the fastest of `alone` that has no more cores on one node."""
    cores_of = max(1, point.cores_of * point.workers // point.nodes)
    usable = [process for process in alone if process.cores_of <= cores_of]
    fastest = max(usable, key=lambda process: process.samples_per_second)
    return point if fastest.cores_of == 1 else over(point, fastest)


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that other ranks wait for, and the phase that is longer there, by some seconds of a step."""

    rank: int
    phase: str
    phase_s: float


def with_losses(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return `points`, each with its losses against the baseline of its mode and variant.

    In the ideal step each phase takes as long per sample as at the baseline. The shares of all losses, with
    the negative ones, add up to 1 less the efficiency. With an oversubscribed baseline there are no losses.
    """
    bases = {key: series[0] for key, series in series_of(points).items()}
    return tuple(replace(point, losses=_losses(point, bases[point.mode, point.variant])) for point in points)


def straggler(point: Point) -> Straggler | None:
    """Return the rank that causes most of the waiting; None if it is for varying ranks."""
    if len(point.ranks) < 2 or not point.waiting_s or not all(rank.step_s for rank in point.ranks):
        return None
    slowest = max(point.ranks, key=_busy)
    rest = [rank for rank in point.ranks if rank is not slowest]
    excess = _busy(slowest) - median_low(map(_busy, rest))
    if excess * len(rest) / len(point.ranks) < _MOSTLY * point.waiting_s:
        return None
    more = {name: slowest.step_s[name] - median_low(rank.step_s[name] for rank in rest) for name in _OWN}
    phase = max(more, key=lambda name: more[name])
    return Straggler(slowest.rank, phase, more[phase])


def _busy(rank: Rank) -> float:
    return sum(rank.step_s.get(name, 0.0) for name in _OWN)


def _losses(point: Point, base: Point) -> tuple[Loss, ...]:
    whole = sum(point.step_s.values())
    if point.workers == base.workers or base.oversubscribed or not whole or not base.step_s:
        return ()
    share = _ideal_share(point, base)
    lost = {name: point.step_s[name] - share * base.step_s[name] for name in PHASES}
    synced = lost.pop("exposed_sync")
    waiting = (point.waiting_s or 0.0) - share * (base.waiting_s or 0.0)
    slow = straggler(point)
    by_cause = {
        "exchange": synced - waiting,
        "waiting": 0.0 if slow else waiting,
        "straggler": 0.0,
        **{name: lost[name] for name in ("data", "to_device", "optimizer", "other")},
        "compute": lost["forward"] + lost["backward"],
    }
    if slow:  # the mean over ranks includes a part of its excess, which the others wait for as well
        excess_s = slow.phase_s / len(point.ranks)
        by_cause["compute" if slow.phase in {"forward", "backward"} else slow.phase] -= excess_s
        by_cause["straggler"] = waiting + excess_s
    named: dict[str, Any] = {"phase": slow.phase, "rank": slow.rank} if slow else {}
    losses = [
        Loss(cause=cause, share=seconds / whole, **(named if cause == "straggler" else {}))
        for cause, seconds in by_cause.items()
        if seconds
    ]
    return tuple(sorted(losses, key=lambda loss: -loss.share))


def _ideal_share(point: Point, base: Point) -> float:
    """Return the length of the ideal step divided by that of `base`: the ratio of a worker's samples."""
    times = point.workers / base.workers
    if point.global_batch is None or base.global_batch is None:
        return 1.0 if point.mode == "weak" else 1 / times
    return point.global_batch / base.global_batch / times
