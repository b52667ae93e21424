"""Compares the variants of a study: the fastest, and the phases of a step that make the difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.confidence import Interval, of_ratio
from samestep.studies.scaling.analysis.fit_quality import share_text
from samestep.studies.scaling.analysis.point_text import (
    VAGUE,
    counted,
    is_communication_hidden,
    is_vague,
    percent,
    phase_name,
)
from samestep.studies.scaling.analysis.speedup import interval
from samestep.studies.scaling.analysis.study import Finding, Point
from samestep.studies.scaling.analysis.unread_variables import why_alike

_finding = partial(Finding, "comparison")

_MOSTLY = 0.25
"""The smallest part of a difference for which a phase is named."""


def comparisons(points: Sequence[Point]) -> Iterator[Finding]:
    """Yield the differences at each number of workers and mode that was measured in several variants.

    Oversubscribed points are left out, since their times depend on the scheduling of processes.
    """
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in (one for one in points if not one.oversubscribed):
        groups.setdefault((point.mode, point.workers), []).append(point)
    several: dict[tuple[float, ...], list[Point]] = {}  # the baseline can be in two modes
    for (_, workers), group in groups.items():
        several.setdefault((workers, *(point.samples_per_second for point in group)), group)
    for group in several.values():
        first = group[0]
        where = f"{counted(first.workers)}{', weak' if first.mode == 'weak' else ''}"
        for one in _compared(group) if len(group) > 1 else ():
            yield replace(one, words=f"{where}: {one.words}", workers=(first.workers,), mode=first.mode)


def _compared(group: Sequence[Point]) -> Iterator[Finding]:
    """Yield how the fastest variant compares with the others."""
    groups: list[list[Point]] = []
    for point in sorted(group, key=lambda point: -point.samples_per_second):
        if groups and _is_same_run(point, groups[-1][0]):
            groups[-1].append(point)
        else:
            groups.append([point])
    for points in groups:
        if len(points) > 1:
            names = _listed([_name(point) for point in group if point in points])
            yield _finding("same-runs", f"{names} have the same runs, since one worker does not communicate.")
    fastest, *rest = [points[0] for points in groups]
    yield from _against(fastest, rest)


def _against(fastest: Point, rest: Sequence[Point]) -> Iterator[Finding]:
    alike = {_name(point): why for point in rest if (why := why_alike(fastest, point))}
    others = [(point, _between(fastest, point)) for point in rest if _name(point) not in alike]
    once = [point for point, between in others if between is None]
    open_ = [point for point, between in others if between and between[0] <= 1 and is_vague(between)]
    for why in dict.fromkeys(alike.values()):
        names = _listed([_name(fastest), *(name for name, other in alike.items() if other == why)])
        yield _finding("cannot-differ", f"{names} cannot differ, and their difference is chance: {why}.")
    for point, between in others:
        if between and point not in open_:
            yield _pair(fastest, point, between)
    if once:
        faster = _listed([f"{_more(fastest, point)} faster than {_name(point)}" for point in once])
        words = f"{_name(fastest)} was {faster} in single runs; measure more repeats for an interval."
        yield _finding("single-runs", words)
    if open_:
        names = " or ".join(_name(point) for point in open_)
        words = f"the difference between {_name(fastest)} and {names} is inconclusive: {VAGUE}."
        yield _finding("inconclusive", words)


def _pair(fast: Point, slow: Point, between: Interval) -> Finding:
    first, second = _name(fast), _name(slow)
    if between[0] <= 1:
        low, high = share_text(1 - between[0]), share_text(between[1] - 1)
        words = f"no certain difference: {first} is between {low} slower and {high} faster than {second}."
        return _finding("no-difference", words)
    return _finding("faster", f"{first} is {_more(fast, slow)} faster than {second}{_why(fast, slow)}.")


def _between(fast: Point, slow: Point) -> Interval | None:
    return of_ratio(fast.samples_per_second, slow.samples_per_second, interval(fast), interval(slow))


def _is_same_run(one: Point, other: Point) -> bool:
    """Return whether two points of one worker are those of the same runs."""
    return bool(one.runs) and one.workers == 1 and (one.runs, one.step_s) == (other.runs, other.step_s)


def _name(point: Point) -> str:
    return point.variant or "without"


def _more(fast: Point, slow: Point) -> str:
    return percent(fast.samples_per_second / slow.samples_per_second - 1)


def _listed(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


def _why(fast: Point, slow: Point) -> str:
    """Return the phases that make the difference."""
    if not fast.step_s or not slow.step_s:
        return ""
    together = is_communication_hidden(fast) != is_communication_hidden(slow)
    quick, long = _phases(fast, together=together), _phases(slow, together=together)
    less = {name: long[name] - quick[name] for name in quick}
    whole = sum(less.values())
    moved = [name for name in sorted(less, key=lambda name: -less[name]) if less[name] >= _MOSTLY * whole > 0]
    parts = [
        f"{name} {seconds_text(quick[name])} instead of {seconds_text(long[name])}" for name in moved[:2]
    ]
    return f": {', '.join(parts)} of a step" if parts else ""


def _phases(point: Point, *, together: bool) -> Mapping[str, float]:
    """Return the seconds of a step by the names of its phases.

    Args:
        point: the point with the step.
        together: whether to add communication to backward, because one variant does not separate the two.
    """
    seconds = {phase_name(name): value for name, value in point.step_s.items()}
    if together:
        both = seconds.pop("backward") + seconds.pop(phase_name("exposed_sync"))
        seconds["backward with communication"] = both
    return seconds
