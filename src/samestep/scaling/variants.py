"""Variants of one study side by side: which is faster, in which phase, or that nobody can tell."""

from collections.abc import Iterator, Mapping, Sequence

from samestep.base.units import seconds_text
from samestep.scaling.interval import Interval, of_ratio
from samestep.scaling.relate import interval
from samestep.scaling.study import Point
from samestep.scaling.tested import share_text
from samestep.scaling.unread import why_alike
from samestep.scaling.words import VAGUE, counted, exchange_within_backward, is_vague, named, percent

_MOSTLY = 0.25
"""The part of a difference that a phase has to make, to be named."""


def comparisons(points: Sequence[Point]) -> tuple[str, ...]:
    """Return sentences for each number of workers and mode that was measured in several variants.

    Oversubscribed points are left out: they measure how processes take turns.
    """
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in (one for one in points if not one.oversubscribed):
        groups.setdefault((point.mode, point.workers), []).append(point)
    several: dict[tuple[float, ...], list[Point]] = {}  # the fewest workers may count in two modes
    for (_, workers), group in groups.items():
        several.setdefault((workers, *(point.samples_per_second for point in group)), group)
    return tuple(sentence for group in several.values() if len(group) > 1 for sentence in _compared(group))


def _compared(group: Sequence[Point]) -> Iterator[str]:
    """Yield how the fastest compares with the others, in one sentence where no difference is sure."""
    groups: list[list[Point]] = []
    for point in sorted(group, key=lambda point: -point.samples_per_second):
        if groups and _is_same_run(point, groups[-1][0]):
            groups[-1].append(point)
        else:
            groups.append([point])
    fastest, *rest = [points[0] for points in groups]
    where = f"{counted(fastest.workers)}{', weak' if fastest.mode == 'weak' else ''}"
    for points in groups:
        if len(points) > 1:
            names = _listed([_name(point) for point in group if point in points])
            yield f"{where}: {names} have the same runs, since one worker exchanges nothing."
    for said in _against(fastest, rest):
        yield f"{where}: {said}"


def _against(fastest: Point, rest: Sequence[Point]) -> Iterator[str]:
    """Yield how the fastest compares with the others."""
    alike = {_name(point): why for point in rest if (why := why_alike(fastest, point))}
    others = [(point, _between(fastest, point)) for point in rest if _name(point) not in alike]
    once = [point for point, between in others if between is None]
    open_ = [point for point, between in others if between and between[0] <= 1 and is_vague(between)]
    for why in dict.fromkeys(alike.values()):
        those = [_name(fastest), *(name for name, other in alike.items() if other == why)]
        yield f"{_listed(those)} cannot differ, and what they differ by is chance: {why}."
    for point, between in others:
        if between and point not in open_:
            yield _pair(fastest, point, between)
    if once:
        faster = [f"{_more(fastest, point)} faster than {_name(point)}" for point in once]
        whether = "without several runs of each nobody can tell whether it is"
        yield f"{_name(fastest)} was {_listed(faster)}; {whether}."
    if open_:
        those = [_name(point) for point in open_]
        yield f"no difference between {_name(fastest)} and {' or '.join(those)} can be told: {VAGUE}."


def _pair(fast: Point, slow: Point, between: Interval) -> str:
    first, second = _name(fast), _name(slow)
    if between[0] <= 1:
        low, high = share_text(1 - between[0]), share_text(between[1] - 1)
        return f"no difference can be told: {first} is between {low} slower and {high} faster than {second}."
    return f"{first} is {_more(fast, slow)} faster than {second}{_why(fast, slow)}."


def _between(fast: Point, slow: Point) -> Interval | None:
    return of_ratio(fast.samples_per_second, slow.samples_per_second, interval(fast), interval(slow))


def _is_same_run(one: Point, other: Point) -> bool:
    """Return whether points that are shared by variants are those of the same runs."""
    return bool(one.runs) and one.workers == 1 and (one.runs, one.step_s) == (other.runs, other.step_s)


def _name(point: Point) -> str:
    return point.variant or "without"


def _more(fast: Point, slow: Point) -> str:
    return percent(fast.samples_per_second / slow.samples_per_second - 1)


def _listed(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


def _why(fast: Point, slow: Point) -> str:
    """Return the phases that the difference is made of."""
    if not fast.step_s or not slow.step_s:
        return ""
    together = exchange_within_backward(fast) != exchange_within_backward(slow)
    quick, long = _phases(fast, together=together), _phases(slow, together=together)
    less = {name: long[name] - quick[name] for name in quick}
    whole = sum(less.values())
    moved = [name for name in sorted(less, key=lambda name: -less[name]) if less[name] >= _MOSTLY * whole > 0]
    said = [f"{name} {seconds_text(quick[name])} instead of {seconds_text(long[name])}" for name in moved[:2]]
    return f": {', '.join(said)} of a step" if said else ""


def _phases(point: Point, *, together: bool) -> Mapping[str, float]:
    """Return the seconds of a step's phases by what they are called.

    Args:
        point: whose step.
        together: whether backward and the exchange are one, since one of two variants cannot tell them apart.
    """
    seconds = {named(name): value for name, value in point.step_s.items()}
    if together:
        seconds["backward with the exchange"] = seconds.pop("backward") + seconds.pop(named("exposed_sync"))
    return seconds
