"""Fits the cost of exposed communication: alpha for each message and beta for each byte."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from samestep.base.units import count_text, seconds_text
from samestep.studies.scaling.analysis.confidence import Interval, of_repeats
from samestep.studies.scaling.analysis.fit_quality import DESCRIBES, deviation_of, tested
from samestep.studies.scaling.analysis.point_text import NOTHING_S, VAGUE, counted, is_vague
from samestep.studies.scaling.analysis.points_from_runs import same_batch
from samestep.studies.scaling.analysis.study import Fit, Point

_MB, _KB = 1e6, 1e3


class Ring(NamedTuple):
    """The time model of a ring all-reduce."""

    alpha: float
    """Seconds of each of its 2 (N - 1) messages, independent of their size."""
    gradient: float
    """Seconds in which a link carries all gradients once."""

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

    def by(self, size: float) -> "_Estimate":
        """Return the estimate divided by `size`."""
        low, high = self.between or (0.0, 0.0)
        return _Estimate(self.value / size, None if self.between is None else (low / size, high / size))


def fit_communication(points: Sequence[Point]) -> Fit:
    """Return alpha and beta of the exposed communication, modeled as a ring.

    ``exposed = 2 (N - 1) alpha + 2 (N - 1) / N * bytes * beta``. Both are of the part that backward does not
    hide. A parameter whose interval is wider than a factor of two is left out. If the bytes are unknown, the
    seconds in which all gradients pass a link replace beta.

    Args:
        points: of one mode and variant, by workers; the first is the baseline.
    """
    fit = Fit(model="exchange", mode="strong")
    several = [point for point in points if point.workers > 1 and point.exchange_s is not None]
    if several and any(point.nodes > 1 for point in several):
        several = [point for point in several if point.nodes > 1]  # links within a machine are faster
    if several and max(_waited(point) for point in several) <= NOTHING_S:
        return replace(fit, code="nothing-exposed", words="Communication: none was exposed.")
    several = list({point.workers: point for point in several if _waited(point) > NOTHING_S}.values())
    if len(several) < 2:
        need = "two numbers of workers above 1 with exposed communication are needed"
        words = " ".join(
            [f"Alpha and beta of communication: not determined, {need}.", *map(_single, several)]
        )
        return replace(fit, code="too-few-points", words=words)
    waits = {point.workers: _waited(point) for point in several}
    ring, rings = _ring(waits), list(_of_rounds(several))
    deviation = deviation_of(list(waits.items()), ring.seconds, parameters=2)
    alpha = _estimate(ring.alpha, [one.alpha for one in rings])
    gradient = _estimate(ring.gradient, [one.gradient for one in rings])
    size = _bytes(several)
    return replace(
        fit,
        workers=tuple(waits),
        parameters=_parameters(alpha, gradient, size),
        deviation=deviation,
        code="inconclusive" if alpha.is_open and gradient.is_open else "fitted",
        words=_words(alpha, gradient, size, deviation),
    )


def _waited(point: Point) -> float:
    return point.exchange_s or 0.0


def _single(point: Point) -> str:
    """Return the measured communication of one point, which no model can be fitted to."""
    carried = f" for {count_text(point.exchange_bytes)}B of gradients" if point.exchange_bytes else ""
    return f"{counted(point.workers)} wait {seconds_text(_waited(point))} of a step{carried}."


def _bytes(points: Sequence[Point]) -> int | None:
    """Return the bytes of gradients; None if they are unknown for a point, or differ between points."""
    sizes = [point.exchange_bytes or 0 for point in points]
    return sizes[0] if min(sizes) and same_batch(min(sizes), max(sizes)) else None


def _ring(waits: Mapping[int, float]) -> Ring:
    return Ring(*_two([(2 * (n - 1) / t, 2 * (n - 1) / n / t) for n, t in waits.items()]))


def _of_rounds(points: Sequence[Point]) -> Iterator[Ring]:
    """Yield the ring fitted to the runs of each round alone."""
    for runs in zip(*(point.exchange_runs for point in points), strict=False):  # a failed run is missing
        waits = dict(zip((point.workers for point in points), runs, strict=True))
        yield _ring(waits) if min(runs) > NOTHING_S else Ring(0.0, 0.0)


def _estimate(value: float, of_rounds: Sequence[float]) -> _Estimate:
    if len(of_rounds) < 2:
        return _Estimate(value, None)
    if not any((value, *of_rounds)):
        return _Estimate(0.0, (0.0, 0.0))
    low, high = (of_repeats(of_rounds) if all(of_rounds) else None) or (0.0, math.inf)
    return _Estimate(value, (min(low, value), max(high, value)))


def _parameters(alpha: _Estimate, gradient: _Estimate, size: int | None) -> dict[str, float]:
    """Return the conclusive estimates, with the ends of their intervals."""
    carried = {"gradient_s": gradient} if size is None else {"beta_s_per_byte": gradient.by(size)}
    found: dict[str, float] = {}
    for name, estimate in {"alpha_s": alpha, **carried}.items():
        if not estimate.is_open:
            found[name] = estimate.value
            if estimate.between is not None:
                found[f"{name}_low"], found[f"{name}_high"] = estimate.between
    return found


def _words(alpha: _Estimate, gradient: _Estimate, size: int | None, deviation: float | None) -> str:
    what = "Exposed communication, modeled as a ring"
    if alpha.is_open and gradient.is_open:
        return f"{what}: alpha and beta are inconclusive: {VAGUE}."
    is_described = deviation is None or deviation <= DESCRIBES
    parts = [
        "an inconclusive time for each message"
        if alpha.is_open
        else f"{_time(alpha.value)} for each message",
        _carried(gradient, size, with_rate=is_described),
    ]
    return tested(f"{what}: {' and '.join(parts)}", deviation)


def _carried(gradient: _Estimate, size: int | None, *, with_rate: bool) -> str:
    """Return the time of the gradients, and their rate."""
    if gradient.is_open:
        return "an inconclusive time for each byte"
    if size is None:
        return f"{_time(gradient.value)} for the gradients to pass a link once"
    unit, name = (_MB, "MB") if size >= _MB else (_KB, "kB")
    beta = gradient.by(size)
    words = f"{_time(beta.value * unit)} for each {name} of gradients"
    if not beta.value or not with_rate:
        return words
    low, high = beta.between or (beta.value, beta.value)
    interval = "" if beta.between is None else f", {_rate(high)} to {_rate(low)}"
    return f"{words} (about {_rate(beta.value)} within a step{interval})"


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds else "no measurable time"


def _rate(beta: float) -> str:
    return f"{count_text(1 / beta)}B/s"


def _two(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the non-negative a and b for which ``a x + b y`` is closest to 1 over the rows."""
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    size = xx * yy - xy * xy
    a, b = (x * yy - y * xy) / size, (y * xx - x * xy) / size
    if a < 0:
        return 0.0, y / yy
    return (a, b) if b >= 0 else (x / xx, 0.0)
