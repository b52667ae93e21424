"""Compares the variants of a study: the fastest, and the phases of a step that make the difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.confidence import is_vague
from samestep.studies.scaling.analysis.point_text import (
    counted,
    is_communication_hidden,
    percent,
    phase_name,
    share_text,
)
from samestep.studies.scaling.analysis.speedup import fair, rate_ratio
from samestep.studies.scaling.analysis.statements import finding
from samestep.studies.scaling.analysis.study import Finding, Point

_MOSTLY = 0.25  # the smallest part of a difference for which a phase is named

# The library that reads the variables with each prefix.
_READERS = {"NCCL_": "nccl", "TORCH_NCCL_": "nccl", "GLOO_": "gloo", "UCC_": "ucc", "MPI": "mpi"}
_KNOWN = {*_READERS.values(), "xccl"}
# The transport of gradients on CPUs; a process group, which is not NCCL, carries everything else.
_IN_MEMORY = "shared memory"


def comparisons(points: Sequence[Point]) -> Iterator[Finding]:
    """Yield the differences at each number of workers and mode that was measured in several variants.

    Oversubscribed points are left out, since their times depend on the scheduling of processes.
    """
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in fair(points):
        groups.setdefault((point.mode, point.workers), []).append(point)
    several: dict[tuple[float, ...], list[Point]] = {}  # the baseline can be in two modes
    for (_, workers), group in groups.items():
        several.setdefault((workers, *(point.samples_per_second for point in group)), group)
    for group in several.values():
        for one in _compared(group) if len(group) > 1 else ():
            yield replace(one, workers=(group[0].workers,), mode=group[0].mode)


def _comparison(code: str, point: Point, **facts: Any) -> Finding:
    where = f"{counted(point.workers)}{', weak' if point.mode == 'weak' else ''}"
    return finding("comparison", code, where=where, name=_name(point), **facts)


def _compared(group: Sequence[Point]) -> Iterator[Finding]:
    """Yield how the fastest variant compares with the others."""
    groups: list[list[Point]] = []
    for point in sorted(group, key=lambda point: -point.samples_per_second):
        last = groups[-1][0] if groups and point.workers == 1 and point.runs else None
        if last is not None and (point.runs, point.step_s) == (last.runs, last.step_s):
            groups[-1].append(point)
        else:
            groups.append([point])
    for points in groups:
        if len(points) > 1:
            names = _listed([_name(point) for point in group if point in points])
            yield _comparison("same-runs", points[0], names=names)
    fastest, *rest = [points[0] for points in groups]
    yield from _against(fastest, rest)


def _against(fastest: Point, rest: Sequence[Point]) -> Iterator[Finding]:
    alike = {_name(point): why for point in rest if (why := reason_of_equality(fastest, point))}
    others = [(point, rate_ratio(fastest, point)) for point in rest if _name(point) not in alike]
    for why in dict.fromkeys(alike.values()):
        names = _listed([_name(fastest), *(name for name, other in alike.items() if other == why)])
        yield _comparison("cannot-differ", fastest, names=names, why=why)
    once, open_ = [], []
    for point, between in others:
        more, other = percent(fastest.samples_per_second / point.samples_per_second - 1), _name(point)
        if between is None:
            once.append(f"{more} faster than {other}")
        elif between[0] > 1:
            yield _comparison("faster", fastest, more=more, other=other, why=_why(fastest, point))
        elif is_vague(between):
            open_.append(other)
        else:
            low, high = share_text(1 - between[0]), share_text(between[1] - 1)
            yield _comparison("no-difference", fastest, other=other, low=low, high=high)
    if once:
        yield _comparison("single-runs", fastest, faster=_listed(once))
    if open_:
        yield _comparison("inconclusive", fastest, others=" or ".join(open_))


def _name(point: Point) -> str:
    return point.variant or "without"


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
    """Return the seconds of a step by phase; `together` adds communication to backward."""
    seconds = {phase_name(name): value for name, value in point.step_s.items()}
    if together:
        both = seconds.pop("backward") + seconds.pop(phase_name("exposed_sync"))
        seconds["backward with communication"] = both
    return seconds


def reason_of_equality(one: Point, other: Point) -> str:
    """Return why two variants at one number of workers cannot differ; empty if they can, or if unknown.

    They cannot if they differ in variables only, and no library in their runs reads these.

    >>> rate = {"samples_per_second": 1.0, "speedup": 1.0, "efficiency": 0.5, "backend": "gloo"}
    >>> ring, tree = (Point(workers=2, variant=f"env:NCCL_ALGO={name}", **rate) for name in ("Ring", "Tree"))
    >>> reason_of_equality(ring, tree)
    'NCCL_ALGO is read by nccl, and these runs communicate over gloo'
    """
    # A space in a value begins another name.
    first, second = ({tuple(word.split("=", 1)) for word in point.variant.split()} for point in (one, other))
    names = sorted({setting[0] for setting in first ^ second})
    variables = [name.removeprefix("env:") for name in names if name.startswith("env:")]
    readers = {
        next((one for prefix, one in _READERS.items() if name.startswith(prefix)), "") for name in variables
    }
    carriers = {one.backend, other.backend} - {""}
    if not variables or len(variables) < len(names) or "" in readers:
        return ""
    if any(_can_read(reader, carrier) for reader in readers for carrier in carriers):
        return ""
    read = f"{', '.join(variables)} is read by {', '.join(sorted(readers))}"
    if carriers:
        return f"{read}, and these runs communicate over {', '.join(sorted(carriers))}"
    return f"{read}, and one worker does not communicate" if one.workers == 1 else ""


def _can_read(reader: str, carrier: str) -> bool:
    """Return whether runs whose gradients are sent over `carrier` can use the library `reader`."""
    if carrier == _IN_MEMORY:
        return reader != "nccl"
    return reader in carrier or not any(name in carrier for name in _KNOWN)
