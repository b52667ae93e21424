"""Models laid through points: the serial share after Amdahl and Gustafson, what an exchange costs."""

from collections.abc import Sequence
from dataclasses import replace

from samestep.scaling.certainty import is_open
from samestep.scaling.exchange import exchange
from samestep.scaling.relate import series_of
from samestep.scaling.study import Fit, Point
from samestep.scaling.tested import deviation_of, share_text, tested, too_few
from samestep.scaling.words import BASE_CROWDED, DIFFER, counted, times

_ROUNDING = 1e-9
"""What figures may differ by and still be the same."""


def fits(points: Sequence[Point]) -> tuple[Fit, ...]:
    """Return the models that suit each mode and variant; what the points do not determine says so.

    Oversubscribed points are left out: they measure how processes take turns. Where these are the fewest
    workers, there is no speedup to lay a model through.
    """
    found = []
    for (mode, variant), series in series_of(points).items():
        base, *larger = series
        usable = [point for point in larger if not point.oversubscribed]
        laid = []
        if mode == "strong":
            laid.append(amdahl([base, *usable]))
        if mode == "weak":
            laid.append(gustafson([base, *usable]))
        if any(point.exchange_s is not None for point in series):
            laid.append(exchange(usable if base.oversubscribed else [base, *usable]))
        found += [replace(fit, mode=mode, variant=variant) for fit in laid]
    return tuple(found)


def amdahl(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that more workers do not shorten: ``1 / speedup = s + (1 - s) / N``.

    Args:
        points: of one mode and variant, by workers; the first is what they are compared with.
    """
    why_not = _undetermined("Amdahl", points)
    if why_not:
        return Fit(model="amdahl", mode="strong", words=why_not)
    scaled = _scaled(points)
    # Least squares of 1/speedup - 1/n = s (1 - 1/n), each point by its share.
    pairs = [(speedup * (1 - 1 / n), 1 - speedup / n) for n, speedup in scaled]
    raw = _slope(pairs)
    serial = min(1.0, max(0.0, raw))
    deviation = deviation_of(scaled, lambda n: 1 / (serial + (1 - serial) / n))
    limit = f"they stay below {times(points[0].workers / serial)}" if serial else "no limit shows"
    what = "a step" if any(point.step_s for point in points) else "a run"
    words = f"Amdahl: {share_text(serial)} of {what} is not shortened by more workers, however many; {limit}"
    if raw <= 0:
        found = "smaller shares were even faster" if raw < 0 else limit
        words = f"Amdahl: all of {what} is shortened by more workers; {found}"
    elif raw >= 1:
        words = f"Amdahl: nothing of {what} is shortened by more workers"
    return Fit(
        model="amdahl",
        mode="strong",
        workers=_workers(points),
        parameters={"serial_share": serial},
        deviation=deviation,
        words=tested(words, deviation),
    )


def gustafson(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that does not scale with its batch: ``speedup = N - s (N - 1)``.

    Args:
        points: as for `amdahl`.
    """
    why_not = _undetermined("Gustafson", points)
    if why_not:
        return Fit(model="gustafson", mode="weak", words=why_not)
    scaled = _scaled(points)
    raw = _slope([((n - 1) / speedup, (n - speedup) / speedup) for n, speedup in scaled])
    serial = min(1.0, max(0.0, raw))
    deviation = deviation_of(scaled, lambda n: n - serial * (n - 1))
    words = f"Gustafson: of each further worker {share_text(1 - serial)} is gained"
    return Fit(
        model="gustafson",
        mode="weak",
        workers=_workers(points),
        parameters={"serial_share": serial},
        deviation=deviation,
        words=tested(words, deviation),
    )


def _undetermined(what: str, points: Sequence[Point]) -> str:
    """Return why no share can be told of `points`; empty where one can."""
    base, *larger = points
    if base.oversubscribed:
        return f"{what}: nothing can be told: {counted(base.workers)} {BASE_CROWDED}."
    if not larger:
        return too_few(what, "one number of workers")
    return f"{what}: nothing can be told: {DIFFER}." if any(map(is_open, larger)) else ""


def _scaled(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return workers and speedup of all points but the first, in units of that."""
    return [(point.workers / points[0].workers, point.speedup / points[0].workers) for point in points[1:]]


def _slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the `s` that brings ``y = s x`` closest to the pairs; 0 or 1 where it only was rounded."""
    slope = sum(x * y for x, y in pairs) / (sum(x * x for x, _ in pairs) or 1.0)  # 0 only by underflow
    whole = 1.0 if slope > 0.5 else 0.0
    return whole if abs(slope - whole) < _ROUNDING else slope


def _workers(points: Sequence[Point]) -> tuple[int, ...]:
    return tuple(point.workers for point in points)
