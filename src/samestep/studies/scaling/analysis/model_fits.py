"""Fits models to points: the serial share by Amdahl and Gustafson, and the cost of exposed communication."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from samestep.base.units import count_text, seconds_text
from samestep.studies.scaling.analysis.confidence import Interval, is_vague, of_repeats
from samestep.studies.scaling.analysis.point_text import (
    NOTHING_S,
    counted,
    like_each,
    oversubscribed_baseline,
    share_text,
    times,
)
from samestep.studies.scaling.analysis.points import same_batch
from samestep.studies.scaling.analysis.speedup import fair, same_threads, series_of
from samestep.studies.scaling.analysis.statements import DIFFER, VAGUE
from samestep.studies.scaling.analysis.study import Fit, Point

_Pair: TypeAlias = tuple[float, float]

_ROUNDING = 1e-9  # the largest difference of equal numbers
_DESCRIBES = 0.1  # the largest deviation at which a model describes its points
_RING = "Exposed communication, modeled as a ring"


def fits(points: Sequence[Point]) -> tuple[Fit, ...]:
    """Return the models of each mode and variant; one that the points do not determine has no parameters.

    The models are about workers that are alike, so speedups are over one worker like each of them.

    Oversubscribed points are left out, since their times depend on the scheduling of processes. An
    oversubscribed baseline leaves no speedup to fit.
    """
    fitted = []
    for (mode, variant), series in series_of(points).items():
        alike = same_threads(series)
        known = [alike[0], *fair(alike[1:])]
        of_series = [amdahl(known)] if mode == "strong" else [gustafson(known)] if mode == "weak" else []
        if any(point.exchange_s is not None for point in series):
            of_series.append(fit_communication(fair(series)))
        fitted += [replace(fit, mode=mode, variant=variant) for fit in of_series]
    return tuple(fitted)


def amdahl(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that more workers do not shorten: ``1 / speedup = s + (1 - s) / N``.

    The points are of one mode and variant, by workers; the first is the baseline.
    """

    def words(raw: float, serial: float) -> str:
        what = "a step" if any(point.step_s for point in points) else "a run"
        if raw < 0:
            return f"more workers shorten all of {what}; smaller shards were even faster"
        if raw == 0:
            return f"more workers shorten all of {what}; there is no measurable limit"
        if raw >= 1:
            return f"more workers shorten nothing of {what}"
        over = like_each(points[0])
        limit = times(points[0].workers / serial) + (f" over {over}" if over else "")
        return f"more workers do not shorten {share_text(serial)} of {what}; the limit is {limit}"

    return _serial_share(
        Fit(model="amdahl", mode="strong"),
        points,
        # Least squares of 1/speedup - 1/n = s (1 - 1/n), each point by its share.
        pair=lambda n, speedup: (speedup * (1 - 1 / n), 1 - speedup / n),
        speedup=lambda serial, n: 1 / (serial + (1 - serial) / n),
        words=words,
    )


def gustafson(points: Sequence[Point]) -> Fit:
    """Return the share `s` of a step that does not scale with its batch: ``speedup = N - s (N - 1)``."""
    return _serial_share(
        Fit(model="gustafson", mode="weak"),
        points,
        pair=lambda n, speedup: ((n - 1) / speedup, (n - speedup) / speedup),
        speedup=lambda serial, n: n - serial * (n - 1),
        words=lambda _, serial: f"each further worker adds {share_text(1 - serial)} of a worker's rate",
    )


def _serial_share(
    fit: Fit,
    points: Sequence[Point],
    *,
    pair: Callable[[float, float], _Pair],
    speedup: Callable[[float, float], float],
    words: Callable[[float, float], str],
) -> Fit:
    """Return `fit` with the `s` for which ``y = s x`` is closest to the pairs of workers and speedups."""
    name, (base, *larger) = fit.model.capitalize(), points
    if base.oversubscribed:
        why = f"inconclusive, {oversubscribed_baseline(base)}"
        return replace(fit, code="baseline-oversubscribed", words=f"{name}: {why}.")
    if not larger:
        why = "not determined, there is one number of workers"
        return replace(fit, code="too-few-points", words=f"{name}: {why}.")
    if any(point.is_open for point in larger):
        return replace(fit, code="inconclusive", words=f"{name}: inconclusive, {DIFFER}.")
    scaled = [(point.workers / base.workers, point.speedup / base.workers) for point in larger]
    pairs = [pair(*one) for one in scaled]
    raw = sum(x * y for x, y in pairs) / (sum(x * x for x, _ in pairs) or 1.0)  # 0 only by underflow
    whole = 1.0 if raw > 0.5 else 0.0
    raw = whole if abs(raw - whole) < _ROUNDING else raw
    serial = min(1.0, max(0.0, raw))
    deviation = _deviation(scaled, lambda n: speedup(serial, n))
    return replace(
        fit,
        workers=tuple(point.workers for point in points),
        parameters={"serial_share": serial},
        deviation=deviation,
        code="fitted",
        words=_tested(f"{name}: {words(raw, serial)}", deviation),
    )


def _deviation(
    pairs: Sequence[_Pair], model: Callable[[float], float], *, parameters: int = 1
) -> float | None:
    """Return the root mean square of the relative deviations; None for no more points than parameters."""
    if len(pairs) <= parameters:
        return None
    return math.sqrt(sum((model(n) / y - 1) ** 2 for n, y in pairs) / len(pairs))


def _tested(words: str, deviation: float | None) -> str:
    """Return the result of a model with the deviation of the points from it."""
    if deviation is None:
        return f"{words}. No further point tests this."
    apart = ", so the model does not describe them" if deviation > _DESCRIBES else ""
    return f"{words}. The points deviate by {share_text(deviation)} on average{apart}."


class Ring(NamedTuple):
    """The time model of a ring all-reduce."""

    alpha: float  # seconds of each of its 2 (N - 1) messages, independent of their size
    gradient: float  # seconds in which a link carries all gradients once

    def seconds(self, workers: float) -> float:
        """Return the seconds of an all-reduce among `workers`."""
        return 2 * (workers - 1) * self.alpha + 2 * (workers - 1) / workers * self.gradient


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A parameter with the interval of the repeats; None if a point ran once."""

    value: float
    between: Interval | None

    @property
    def is_open(self) -> bool:
        """Whether the interval is too wide for a conclusion."""
        return self.between is not None and is_vague(self.between)


def fit_communication(points: Sequence[Point]) -> Fit:
    """Return alpha and beta of the exposed communication, modeled as a ring, for points as of `amdahl`.

    ``exposed = 2 (N - 1) alpha + 2 (N - 1) / N * bytes * beta``. Both are of the part that backward does not
    hide. A parameter whose interval is wider than a factor of two is left out. If the bytes are unknown, the
    seconds in which all gradients pass a link replace beta.
    """
    fit = Fit(model="exchange", mode="strong")
    several = [point for point in points if point.workers > 1 and point.exchange_s is not None]
    if any(point.nodes > 1 for point in several):
        several = [point for point in several if point.nodes > 1]  # links within a machine are faster
    exposed = {point.workers: point for point in several if (point.exchange_s or 0.0) > NOTHING_S}
    if several and not exposed:
        return replace(fit, code="nothing-exposed", words="Communication: none was exposed.")
    if len(exposed) < 2:
        need = "two numbers of workers above 1 with exposed communication are needed"
        words = f"Alpha and beta of communication: not determined, {need}."
        for point in exposed.values():  # one at most
            carried = f" for {count_text(point.exchange_bytes)}B of gradients" if point.exchange_bytes else ""
            wait = seconds_text(point.exchange_s or 0.0)
            words += f" {counted(point.workers)} wait {wait} of a step{carried}."
        return replace(fit, code="too-few-points", words=words)
    waits = {workers: point.exchange_s or 0.0 for workers, point in exposed.items()}
    ring, rings = _ring(waits), list(_of_rounds(exposed))
    sizes = [point.exchange_bytes or 0 for point in exposed.values()]
    size = sizes[0] if min(sizes) and same_batch(min(sizes), max(sizes)) else None
    alpha = _estimate(ring.alpha, [one.alpha for one in rings])
    beta = _estimate(ring.gradient / (size or 1), [one.gradient / (size or 1) for one in rings])
    deviation = _deviation(list(waits.items()), ring.seconds, parameters=2)
    is_open = alpha.is_open and beta.is_open
    vague = f"{_RING}: alpha and beta are inconclusive: {VAGUE}."
    return replace(
        fit,
        workers=tuple(waits),
        parameters={
            **_parameter("alpha_s", alpha),
            **_parameter("beta_s_per_byte" if size else "gradient_s", beta),
        },
        deviation=deviation,
        code="inconclusive" if is_open else "fitted",
        words=vague if is_open else _words(alpha, beta, size, deviation),
    )


def _ring(waits: Mapping[int, float]) -> Ring:
    """Return the ring whose seconds are closest to `waits` by workers, with non-negative parameters.

    It is the least-squares solution of ``alpha x + gradient y = 1`` over the points.
    """
    rows = [(2 * (n - 1) / t, 2 * (n - 1) / n / t) for n, t in waits.items()]
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    size = xx * yy - xy * xy
    alpha, gradient = (x * yy - y * xy) / size, (y * xx - x * xy) / size
    if alpha < 0:
        return Ring(0.0, y / yy)
    return Ring(alpha, gradient) if gradient >= 0 else Ring(x / xx, 0.0)


def _of_rounds(points: Mapping[int, Point]) -> Iterator[Ring]:
    """Yield the ring fitted to the runs of each round alone."""
    for runs in zip(
        *(point.exchange_runs for point in points.values()), strict=False
    ):  # a run can be missing
        yield _ring(dict(zip(points, runs, strict=True))) if min(runs) > NOTHING_S else Ring(0.0, 0.0)


def _estimate(value: float, of_rounds: Sequence[float]) -> _Estimate:
    if len(of_rounds) < 2:
        return _Estimate(value, None)
    if not any((value, *of_rounds)):
        return _Estimate(0.0, (0.0, 0.0))
    low, high = (of_repeats(of_rounds) if all(of_rounds) else None) or (0.0, math.inf)
    return _Estimate(value, (min(low, value), max(high, value)))


def _parameter(name: str, estimate: _Estimate) -> dict[str, float]:
    """Return a conclusive estimate by name, with the ends of its interval."""
    if estimate.is_open:
        return {}
    ends = zip((f"{name}_low", f"{name}_high"), estimate.between or (), strict=False)
    return {name: estimate.value, **dict(ends)}


def _words(alpha: _Estimate, beta: _Estimate, size: int | None, deviation: float | None) -> str:
    each = "an inconclusive time" if alpha.is_open else _time(alpha.value)
    if beta.is_open:
        carried = "an inconclusive time for each byte"
    elif size is None:
        carried = f"{_time(beta.value)} for the gradients to pass a link once"
    else:
        unit, name = (1e6, "MB") if size >= 1e6 else (1e3, "kB")
        carried = f"{_time(beta.value * unit)} for each {name} of gradients"
        if beta.value and (deviation is None or deviation <= _DESCRIBES):
            ends = "" if beta.between is None else f", {_rate(beta.between[1])} to {_rate(beta.between[0])}"
            carried += f" (about {_rate(beta.value)} within a step{ends})"
    return _tested(f"{_RING}: {each} for each message and {carried}", deviation)


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds else "no measurable time"


def _rate(beta: float) -> str:
    return f"{count_text(1 / beta)}B/s"
