"""The sentence for those who pay: how much faster, at what cost, and no more than the runs agree on."""

from collections.abc import Sequence
from typing import NamedTuple

from samestep.base.units import seconds_text
from samestep.scaling.certainty import (
    between,
    is_decided,
    is_end_sure,
    is_gain_sure,
    is_open,
    pays,
    reaches,
)
from samestep.scaling.serial import outdone, slowness
from samestep.scaling.study import Point
from samestep.scaling.words import MENDED, counted, is_vague, percent, times

_SAME = 0.005
_TWICE = 1.995
"""From which cost on it is told as a factor."""


class Told(NamedTuple):
    """A sentence, and what it is about."""

    words: str
    point: Point | None
    """The number of workers that it has figures of; None where nothing can be told."""


def manager(series: Sequence[Point], *, bar: float | None, at: int | None) -> Told:
    """Return what `series` says to those who pay.

    Args:
        series: points of one mode and variant, by workers.
        bar: the efficiency from which on workers are worth it; None where the knee decides.
        at: the knee, if it was reached.
    """
    base, usable = series[0], [point for point in series if not point.oversubscribed]
    if len(series) == 1:
        return Told(f"Only {counted(base.workers)} measured: nothing follows for more.", None)
    if base.oversubscribed:
        few = (
            f"Nothing follows: {counted(base.workers)}, whom all others are compared with, had too few cores"
        )
        return Told(f"{few} to themselves; measure where there are enough.", None)
    if len(usable) < 2:
        few = f"Nothing follows: more than {counted(base.workers)} had too few cores to themselves"
        return Told(f"{few}; measure where there are enough.", None)
    best = outdone(usable)
    if best is not None:
        reached = f"{counted(best.workers)} came to {percent(best.efficiency)} of the ideal"
        return Told(f"Whether more workers are worth it cannot be told: {reached}; measure again.", None)
    return _by_knee(usable, at) if bar is None else _by_bar(usable, bar)


def largest_worth(points: Sequence[Point], bar: float) -> int | None:
    """Return the most workers that reach a bar; those of whom runs leave that open by far do not count."""
    base = points[0]
    if outdone(points) is not None:
        return None
    enough = (
        point.workers for point in points if reaches(point, base, bar) and not _is_unknown(point, base, bar)
    )
    return max(enough, default=None)


def _is_unknown(point: Point, base: Point, bar: float) -> bool:
    return point is not base and is_open(point) and not is_decided(point, base, bar)


def _by_knee(usable: Sequence[Point], at: int | None) -> Told:
    base = usable[0]
    end = next((point for point in usable if point.workers == at), usable[-1])
    is_sure = is_end_sure(usable, end.workers)
    beyond = [point for point in usable if point.workers > end.workers]
    is_unknown = any(is_open(point) and pays(point, end) is None for point in beyond)
    if end is base:
        few = f"{counted(base.workers)} {'is' if base.workers == 1 else 'are'}"
        if is_unknown:
            return Told(f"Whether {few} enough cannot be told: {MENDED}.", None)
        gain = _gain(usable[1], base)
        enough = f"{'' if is_sure else 'Probably '}{few} enough"
        return Told(f"{enough}: {gain}, which costs more than it brings.", usable[1])
    if is_open(end) and not pays(end, base):
        return Told(f"Whether {counted(end.workers)} are worth it cannot be told: {MENDED}.", None)
    said = _gain(end, base, is_sure=is_gain_sure(end, base))
    if is_unknown:
        said += f"; whether more than {end.workers} bring more than they cost cannot be told"
    elif beyond:
        said += f"; beyond {at}, more workers {'' if is_sure else 'probably '}cost more than they bring"
    return Told(f"{said}.", end)


def _by_bar(usable: Sequence[Point], bar: float) -> Told:
    base, at = usable[0], f"at a bar of {percent(bar)}"
    largest = largest_worth(usable, bar) or base.workers
    undecided = [point for point in usable if point.workers > largest and not is_decided(point, base, bar)]
    if largest == base.workers:
        if any(map(is_open, undecided)):
            return Told(
                f"Whether more than {counted(base.workers)} {'is' if base.workers == 1 else 'are'} worth it "
                f"{at} cannot be told: {MENDED}.",
                None,
            )
        sure = "Probably not worth it" if undecided else "Not worth it"
        return Told(f"{sure} {at}: {_gain(usable[1], base)}.", usable[1])
    chosen = next(point for point in usable if point.workers == largest)
    is_sure = is_decided(chosen, base, bar)
    least = "at least " if undecided and is_sure else ""
    gain = _gain(chosen, base).removeprefix(f"{counted(largest)} ")
    worth = "Worth it" if is_sure else "Probably worth it"
    between_them = (point for point in usable if point.workers < largest)
    reach = "up to" if all(reaches(point, base, bar) for point in between_them) else "with"
    return Told(f"{worth} {at}, {least}{reach} {counted(largest)}, which {gain}.", chosen)


def _gain(point: Point, base: Point, *, is_sure: bool = True) -> str:
    """Return how much faster a point is, and at what cost: half a sentence."""
    slow = slowness(base)
    who = ("one" if base.workers == 1 else str(base.workers)) + (f", whose step {slow}" if slow else "")
    what = "train" if point.mode == "strong" else "go through samples"
    probably = "" if is_sure else "probably "
    known = between(point)
    if known is not None and is_vague(known):
        low, high = (_factor(end / base.workers) for end in known)
        return f"{counted(point.workers)} {what} {low} to {high} times as fast as {who}"
    factor = point.speedup / base.workers
    faster = f"{what} {_factor(factor)} times as fast as {who}"
    if abs(factor - 1) < _SAME:
        faster = f"{what} as fast as {who}"
    elif factor < 1:
        same = "" if point.mode == "strong" else "for the same samples "
        faster = f"take {_factor(1 / factor)} times as long {same}as {who}"
    return f"{counted(point.workers)} {probably}{faster}{_epoch(point, base)}, at {_cost(point)}"


def _factor(factor: float) -> str:
    return times(factor).removesuffix("x")


def _epoch(point: Point, base: Point) -> str:
    if point.worker_hours_per_epoch is None or base.worker_hours_per_epoch is None:
        return ""
    now, then = (
        seconds_text(3600 * (one.worker_hours_per_epoch or 0) / one.workers) for one in (point, base)
    )
    return f" (an epoch in {now} instead of {then})"


def _cost(point: Point) -> str:
    more = 1 / point.efficiency - 1
    if abs(more) < _SAME:
        return "the same worker-hours"
    if 1 + more >= _TWICE:
        return f"{_factor(1 + more)} times the worker-hours for the same work"
    return f"{percent(abs(more))} {'more' if more > 0 else 'fewer'} worker-hours for the same work"
