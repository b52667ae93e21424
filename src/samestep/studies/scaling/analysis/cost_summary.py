"""Writes the summary of a study: speedup and cost in one sentence, as far as the runs determine them."""

from collections.abc import Sequence
from typing import NamedTuple

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.baseline_check import outdone, slowness
from samestep.studies.scaling.analysis.point_text import (
    VAGUE,
    counted,
    is_vague,
    oversubscribed_baseline,
    percent,
    times,
)
from samestep.studies.scaling.analysis.study import Point
from samestep.studies.scaling.analysis.supported_conclusions import (
    between,
    is_decided,
    is_end_sure,
    is_gain_sure,
    is_open,
    pays,
    reaches,
)

_SAME = 0.005
_TWICE = 1.995
"""Costs from here on are a factor, not a percentage."""


class Summary(NamedTuple):
    """The summary of one mode and variant."""

    code: str
    words: str
    point: Point | None = None
    """The number of workers that it is about; None if there is no conclusion."""
    is_certain: bool = False
    """Whether the intervals decide it."""


def summary(series: Sequence[Point], *, bar: float | None, at: int | None) -> Summary:
    """Return the summary of `series`.

    Args:
        series: points of one mode and variant, by workers.
        bar: the requested efficiency; None if the knee decides.
        at: the knee, if it was reached.
    """
    base, usable = series[0], [point for point in series if not point.oversubscribed]
    if len(series) == 1:
        return Summary("single-point", f"No conclusion: all runs are of {counted(base.workers)}.")
    code, why = "", ""
    if base.oversubscribed:
        code, why = "baseline-oversubscribed", oversubscribed_baseline(base)
    elif len(usable) < 2:
        code, why = "all-oversubscribed", f"all runs of more than {counted(base.workers)} were oversubscribed"
    if code:
        return Summary(code, f"No conclusion: {why}; measure where each worker has its own cores.")
    best = outdone(usable)
    if best is not None:
        reached = f"{counted(best.workers)} reached {percent(best.efficiency)} of the ideal; measure again"
        return Summary("superlinear", f"Inconclusive: {reached}.")
    return _by_knee(usable, at) if bar is None else _by_bar(usable, bar)


def largest_worth(points: Sequence[Point], bar: float) -> int | None:
    """Return the most workers that reach a bar, without points that are oversubscribed or inconclusive."""
    base = points[0]
    if base.oversubscribed or outdone(points) is not None:
        return None
    usable = (point for point in points if reaches(point, base, bar) and not point.oversubscribed)
    sure = (p for p in usable if p is base or not is_open(p) or is_decided(p, base, bar))
    return max((point.workers for point in sure), default=None)


def _by_knee(usable: Sequence[Point], at: int | None) -> Summary:
    base = usable[0]
    end = next((point for point in usable if point.workers == at), usable[-1])
    is_sure = is_end_sure(usable, end.workers)
    beyond = [point for point in usable if point.workers > end.workers]
    is_unknown = any(is_open(point) and pays(point, end) is None for point in beyond)
    if end is base:
        few = f"{counted(base.workers)} {'is' if base.workers == 1 else 'are'} enough"
        if is_unknown:
            return Summary("inconclusive", f"It is inconclusive whether {few}: {VAGUE}.")
        words = f"{'' if is_sure else 'Probably '}{few}: {_gain(usable[1], base)}"
        return Summary("baseline-enough", f"{words}, which costs more than it brings.", usable[1], is_sure)
    if is_open(end) and not pays(end, base):
        words = f"It is inconclusive whether {counted(end.workers)} are worth it: {VAGUE}."
        return Summary("inconclusive", words)
    is_certain = is_gain_sure(end, base)
    words = _gain(end, base, is_sure=is_certain)
    if is_unknown:
        words += f"; it is inconclusive whether more than {end.workers} bring more than they cost"
    elif beyond:
        words += f"; beyond {at}, more workers {'' if is_sure else 'probably '}cost more than they bring"
    return Summary("speedup", f"{words}.", end, is_certain and is_sure)


def _by_bar(usable: Sequence[Point], bar: float) -> Summary:
    base, at = usable[0], f"at a bar of {percent(bar)}"
    largest = largest_worth(usable, bar) or base.workers
    undecided = [point for point in usable if point.workers > largest and not is_decided(point, base, bar)]
    if largest == base.workers:
        if any(map(is_open, undecided)):
            more = f"more workers than {base.workers} are worth it {at}"
            return Summary("inconclusive", f"It is inconclusive whether {more}: {VAGUE}.")
        sure = "Probably not worth it" if undecided else "Not worth it"
        return Summary("not-worth", f"{sure} {at}: {_gain(usable[1], base)}.", usable[1], not undecided)
    best = next(point for point in usable if point.workers == largest)
    is_sure = is_decided(best, base, bar)
    least = "at least " if undecided and is_sure else ""
    gain = _gain(best, base).removeprefix(f"{counted(largest)} ")
    worth = "Worth it" if is_sure else "Probably worth it"
    between_them = (point for point in usable if point.workers < largest)
    reach = "up to" if all(reaches(point, base, bar) for point in between_them) else "with"
    words = f"{worth} {at}, {least}{reach} {counted(largest)}, which {gain}."
    return Summary("worth", words, best, is_sure)


def _gain(point: Point, base: Point, *, is_sure: bool = True) -> str:
    """Return speedup and cost of a point as a clause."""
    slow = slowness(base)
    one = ("one" if base.workers == 1 else str(base.workers)) + (f", whose step {slow}" if slow else "")
    verb = "train" if point.mode == "strong" else "process samples"
    probably = "" if is_sure else "probably "
    known = between(point)
    if known is not None and is_vague(known):
        low, high = (_factor(end / base.workers) for end in known)
        return f"{counted(point.workers)} {verb} {low} to {high} times as fast as {one}"
    factor = point.speedup / base.workers
    faster = f"{verb} {_factor(factor)} times as fast as {one}"
    if abs(factor - 1) < _SAME:
        faster = f"{verb} as fast as {one}"
    elif factor < 1:
        same = "" if point.mode == "strong" else "for the same samples "
        faster = f"take {_factor(1 / factor)} times as long {same}as {one}"
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
