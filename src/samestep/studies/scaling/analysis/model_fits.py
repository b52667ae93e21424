"""Fits models to points: the serial share by Amdahl and Gustafson, and the cost of communication."""

from collections.abc import Sequence
from dataclasses import replace

from samestep.studies.scaling.analysis.communication_fit import fit_communication
from samestep.studies.scaling.analysis.fit_quality import deviation_of, share_text, tested
from samestep.studies.scaling.analysis.point_text import DIFFER, oversubscribed_baseline, times
from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.study import Fit, Point
from samestep.studies.scaling.analysis.supported_conclusions import is_open

_ROUNDING = 1e-9
"""The largest difference of equal numbers."""


def fits(points: Sequence[Point]) -> tuple[Fit, ...]:
    """Return the models of each mode and variant; one that the points do not determine has no parameters.

    Oversubscribed points are left out, since their times depend on the scheduling of processes. An
    oversubscribed baseline leaves no speedup to fit.
    """
    fitted = []
    for (mode, variant), series in series_of(points).items():
        base, *larger = series
        usable = [point for point in larger if not point.oversubscribed]
        of_series = []
        if mode == "strong":
            of_series.append(amdahl([base, *usable]))
        if mode == "weak":
            of_series.append(gustafson([base, *usable]))
        if any(point.exchange_s is not None for point in series):
            of_series.append(fit_communication(usable if base.oversubscribed else [base, *usable]))
        fitted += [replace(fit, mode=mode, variant=variant) for fit in of_series]
    return tuple(fitted)


def amdahl(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that more workers do not shorten: ``1 / speedup = s + (1 - s) / N``.

    Args:
        points: of one mode and variant, by workers; the first is the baseline.
    """
    fit = Fit(model="amdahl", mode="strong")
    if why_not := _undetermined(points):
        return replace(fit, code=why_not[0], words=f"Amdahl: {why_not[1]}.")
    scaled = _scaled(points)
    # Least squares of 1/speedup - 1/n = s (1 - 1/n), each point by its share.
    pairs = [(speedup * (1 - 1 / n), 1 - speedup / n) for n, speedup in scaled]
    raw = _slope(pairs)
    serial = min(1.0, max(0.0, raw))
    deviation = deviation_of(scaled, lambda n: 1 / (serial + (1 - serial) / n))
    what = "a step" if any(point.step_s for point in points) else "a run"
    if raw < 0:
        words = f"Amdahl: more workers shorten all of {what}; smaller shards were even faster"
    elif raw == 0:
        words = f"Amdahl: more workers shorten all of {what}; there is no measurable limit"
    elif raw >= 1:
        words = f"Amdahl: more workers shorten nothing of {what}"
    else:
        limit = times(points[0].workers / serial)
        words = f"Amdahl: more workers do not shorten {share_text(serial)} of {what}; the limit is {limit}"
    return replace(
        fit,
        workers=_workers(points),
        parameters={"serial_share": serial},
        deviation=deviation,
        code="fitted",
        words=tested(words, deviation),
    )


def gustafson(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that does not scale with its batch: ``speedup = N - s (N - 1)``.

    Args:
        points: as for `amdahl`.
    """
    fit = Fit(model="gustafson", mode="weak")
    if why_not := _undetermined(points):
        return replace(fit, code=why_not[0], words=f"Gustafson: {why_not[1]}.")
    scaled = _scaled(points)
    raw = _slope([((n - 1) / speedup, (n - speedup) / speedup) for n, speedup in scaled])
    serial = min(1.0, max(0.0, raw))
    deviation = deviation_of(scaled, lambda n: n - serial * (n - 1))
    words = f"Gustafson: each further worker adds {share_text(1 - serial)} of a worker's rate"
    return replace(
        fit,
        workers=_workers(points),
        parameters={"serial_share": serial},
        deviation=deviation,
        code="fitted",
        words=tested(words, deviation),
    )


def _undetermined(points: Sequence[Point]) -> tuple[str, str] | None:
    """Return code and words of why `points` determine no share; None if they do."""
    base, *larger = points
    if base.oversubscribed:
        return "baseline-oversubscribed", f"inconclusive, {oversubscribed_baseline(base)}"
    if not larger:
        return "too-few-points", "not determined, there is one number of workers"
    return ("inconclusive", f"inconclusive, {DIFFER}") if any(map(is_open, larger)) else None


def _scaled(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return workers and speedup of all points but the first, in units of the first."""
    return [(point.workers / points[0].workers, point.speedup / points[0].workers) for point in points[1:]]


def _slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the `s` for which ``y = s x`` is closest to the pairs; exactly 0 or 1 up to rounding."""
    slope = sum(x * y for x, y in pairs) / (sum(x * x for x, _ in pairs) or 1.0)  # 0 only by underflow
    whole = 1.0 if slope > 0.5 else 0.0
    return whole if abs(slope - whole) < _ROUNDING else slope


def _workers(points: Sequence[Point]) -> tuple[int, ...]:
    return tuple(point.workers for point in points)
