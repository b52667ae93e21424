"""What an exposed exchange costs: alpha for each message, beta for each byte, as far as points tell."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samestep.base.units import count_text, seconds_text
from samestep.scaling.interval import Interval, of_repeats
from samestep.scaling.measured import same_batch
from samestep.scaling.study import Fit, Point
from samestep.scaling.tested import DESCRIBES, deviation_of, tested, too_few
from samestep.scaling.words import NOTHING_S, VAGUE, counted, is_vague

_MB, _KB = 1e6, 1e3


class Ring(NamedTuple):
    """What a ring takes."""

    alpha: float
    """Seconds of each of its 2 (N - 1) messages, whatever their size."""
    gradient: float
    """Seconds in which a link carries all gradients once."""

    def seconds(self, workers: float) -> float:
        """Return what an exchange among so many takes."""
        return 2 * (workers - 1) * self.alpha + 2 * (workers - 1) / workers * self.gradient


@dataclass(frozen=True, slots=True)
class _Figure:
    """A parameter, and the interval of the repeats; None where a point ran once."""

    value: float
    between: Interval | None

    @property
    def is_open(self) -> bool:
        """Whether repeats leave it open."""
        return self.between is not None and is_vague(self.between)

    def by(self, size: float) -> "_Figure":
        """Return it for each of so many."""
        low, high = self.between or (0.0, 0.0)
        return _Figure(self.value / size, None if self.between is None else (low / size, high / size))


def exchange(points: Sequence[Point]) -> Fit:
    """Return alpha and beta of the exposed exchange, as a ring would take it.

    ``exposed = 2 (N - 1) alpha + 2 (N - 1) / N * bytes * beta``. Both are of what backward does not hide.
    What the repeats leave open by more than a factor of two is not told; where the bytes are not known, it is
    the seconds in which all gradients pass a link.

    Args:
        points: of one mode and variant, by workers; the first is what they are compared with.
    """
    several = [point for point in points if point.workers > 1 and point.exchange_s is not None]
    if several and any(point.nodes > 1 for point in several):
        several = [point for point in several if point.nodes > 1]  # another link
    if several and max(_waited(point) for point in several) <= NOTHING_S:
        return Fit(model="exchange", mode="strong", words="Exchange: none was waited for.")
    several = list({point.workers: point for point in several if _waited(point) > NOTHING_S}.values())
    if len(several) < 2:
        few = too_few(
            "Alpha and beta of the exchange", "it takes two numbers of workers above 1 that wait for it"
        )
        return Fit(model="exchange", mode="strong", words=" ".join([few, *map(_seen, several)]))
    told = {point.workers: _waited(point) for point in several}
    ring, rings = _ring(told), list(_of_rounds(several))
    deviation = deviation_of(list(told.items()), ring.seconds, parameters=2)
    alpha = _figure(ring.alpha, [one.alpha for one in rings])
    gradient = _figure(ring.gradient, [one.gradient for one in rings])
    size = _bytes(several)
    return Fit(
        model="exchange",
        mode="strong",
        workers=tuple(told),
        parameters=_parameters(alpha, gradient, size),
        deviation=deviation,
        words=_words(alpha, gradient, size, deviation),
    )


def _waited(point: Point) -> float:
    return point.exchange_s or 0.0


def _seen(point: Point) -> str:
    """Return the one exchange that was measured: no model, and true."""
    carried = f" for {count_text(point.exchange_bytes)}B of gradients" if point.exchange_bytes else ""
    return f"{counted(point.workers)} wait {seconds_text(_waited(point))} of a step{carried}."


def _bytes(points: Sequence[Point]) -> int | None:
    """Return the bytes of gradients; None where a point does not tell, or has others than the rest."""
    sizes = [point.exchange_bytes or 0 for point in points]
    return sizes[0] if min(sizes) and same_batch(min(sizes), max(sizes)) else None


def _ring(told: Mapping[int, float]) -> Ring:
    return Ring(*_two([(2 * (n - 1) / t, 2 * (n - 1) / n / t) for n, t in told.items()]))


def _of_rounds(points: Sequence[Point]) -> Iterator[Ring]:
    """Yield what a ring takes by the runs of each round alone."""
    for runs in zip(*(point.exchange_runs for point in points), strict=False):  # some may have failed
        told = dict(zip((point.workers for point in points), runs, strict=True))
        yield _ring(told) if min(runs) > NOTHING_S else Ring(0.0, 0.0)


def _figure(value: float, of_rounds: Sequence[float]) -> _Figure:
    if len(of_rounds) < 2:
        return _Figure(value, None)
    if not any((value, *of_rounds)):
        return _Figure(0.0, (0.0, 0.0))
    low, high = (of_repeats(of_rounds) if all(of_rounds) else None) or (0.0, math.inf)
    return _Figure(value, (min(low, value), max(high, value)))


def _parameters(alpha: _Figure, gradient: _Figure, size: int | None) -> dict[str, float]:
    """Return the figures that are not open, with the ends of their intervals."""
    carried = {"gradient_s": gradient} if size is None else {"beta_s_per_byte": gradient.by(size)}
    told: dict[str, float] = {}
    for name, figure in {"alpha_s": alpha, **carried}.items():
        if not figure.is_open:
            told[name] = figure.value
            if figure.between is not None:
                told[f"{name}_low"], told[f"{name}_high"] = figure.between
    return told


def _words(alpha: _Figure, gradient: _Figure, size: int | None, deviation: float | None) -> str:
    what = "Exposed exchange, as of a ring"
    if alpha.is_open and gradient.is_open:
        return f"{what}: neither alpha nor beta can be told: {VAGUE}."
    is_another = deviation is not None and deviation > DESCRIBES
    parts = [
        "a time for each message that cannot be told, as runs differ too much"
        if alpha.is_open
        else f"{_time(alpha.value)} for each message",
        _carried(gradient, size, with_rate=not is_another),
    ]
    return tested(f"{what}: {' and '.join(parts)}", deviation)


def _carried(gradient: _Figure, size: int | None, *, with_rate: bool) -> str:
    """Return what the gradients take, and how fast that is."""
    if gradient.is_open:
        return "a time for each byte that cannot be told, as runs differ too much"
    if size is None:
        return f"{_time(gradient.value)} for the gradients to pass a link once"
    unit, name = (_MB, "MB") if size >= _MB else (_KB, "kB")
    beta = gradient.by(size)
    said = f"{_time(beta.value * unit)} for each {name} of gradients"
    if not beta.value or not with_rate:
        return said
    low, high = beta.between or (beta.value, beta.value)
    interval = "" if beta.between is None else f", {_rate(high)} to {_rate(low)}"
    return f"{said} (about {_rate(beta.value)} as a step sees it{interval})"


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds else "nothing that shows"


def _rate(beta: float) -> str:
    return f"{count_text(1 / beta)}B/s"


def _two(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b, neither below 0, that bring ``a x + b y`` closest to 1 over the rows."""
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    size = xx * yy - xy * xy
    a, b = (x * yy - y * xy) / size, (y * xx - x * xy) / size
    if a < 0:
        return 0.0, y / yy
    return (a, b) if b >= 0 else (x / xx, 0.0)
