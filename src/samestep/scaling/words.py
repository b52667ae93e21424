"""Points in words: how fast, what was lost."""

from collections.abc import Sequence

from samestep.base import units
from samestep.base.units import seconds_text
from samestep.scaling.interval import Interval
from samestep.scaling.losses import straggler
from samestep.scaling.study import Loss, Point

TOLD = 0.01
"""The least share of a step that is worth a word."""

NOTHING_S = 1e-9
"""Who waited so long did not wait: no clock here reads less."""

DIFFER = "runs differ too much from each other"
MENDED = f"{DIFFER}, which more of them on a quieter machine may mend"
VAGUE = f"their {MENDED}"
"""Of an interval that says nothing."""

BASE_CROWDED = "had too few cores, and all speedups are against that"
"""Of the fewest workers, where these are oversubscribed: nothing that follows from a speedup follows."""

_CLOSE, _LARGE = 1.995, 9.95
"""Below which factors two decimals are told, and one."""

_WHOLE = 1000
"""From which amount on it is told without decimals."""

_NAMES = {
    "data": "waiting for data",
    "to_device": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "exposed_sync": "exposed exchange",
    "optimizer": "the optimizer",
    "other": "other work",
}
_CAUSES = {
    "compute": "forward and backward",
    "exchange": "exposed exchange",
    "waiting": "waiting, now for one rank, now for another",
}
"""What losses are called that are no phase."""


def percent(share: float) -> str:
    """Return a share as people read it.

    >>> percent(0.849)
    '85 %'
    """
    return f"{100 * share:.0f} %"


def times(factor: float) -> str:
    """Return a speedup as people read it; near 1 and below, the second digit says which.

    >>> [times(0.146), times(1.04), times(3.42), times(25.7)]
    ['0.15x', '1.04x', '3.4x', '26x']
    """
    digits = 2 if factor < _CLOSE else 1 if factor < _LARGE else 0
    return f"{factor:.{digits}f}x"


def amount(value: float) -> str:
    """Return a rate or a number of samples with as many digits as say something.

    >>> [amount(value) for value in (0.12345, 64, 1281167)]
    ['0.1234', '64', '1,281,167']
    """
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.4g}"


def counted(workers: int) -> str:
    """Return a number of workers.

    >>> [counted(1), counted(4)]
    ['1 worker', '4 workers']
    """
    return units.counted(workers, "worker")


def is_vague(between: Interval) -> bool:
    """Return whether an interval is so wide that its ends say nothing."""
    low, high = between
    return high > 2 * low


def named(phase: str) -> str:
    """Return what a phase of a step is called in a sentence."""
    return _NAMES[phase]


def speed(point: Point) -> str:
    """Return how fast a point is: ``4 workers: 3.4x, 85 %``."""
    return f"{counted(point.workers)}: {times(point.speedup)}, {percent(point.efficiency)}"


def lost(point: Point) -> str:
    """Return what a point lost, and gained, against the ideal; empty where nobody saw phases."""
    parts = [_lost(point, loss) for loss in told(point)]
    gains = [loss for loss in reversed(point.losses) if loss.share <= -TOLD]
    if not parts:
        parts = ["nothing that shows"] if point.losses else []
    said = [f"Lost: {', '.join(parts)}."] if parts else []
    if gains:
        said.append(f"Gained: {', '.join(_gained(loss) for loss in gains[:2])}.")
    return " ".join(said)


def told(point: Point) -> Sequence[Loss]:
    """Return the losses that are worth a word, at most four."""
    return [loss for loss in point.losses if loss.share >= TOLD][:4]


def exchange_within_backward(point: Point) -> bool:
    """Return whether the exchange cannot be told from backward: several workers, and none waits for it."""
    return point.workers > 1 and bool(point.step_s) and (point.exchange_s or 0.0) <= NOTHING_S


def exchanged_by(point: Point) -> str:
    """Return how gradients are exchanged, and what carries them; empty where nobody says.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 0.5}
    >>> exchanged_by(Point(workers=2, sync="ddp", backend="gloo", **rate))
    'ddp over gloo'
    """
    return " ".join(filter(None, (point.sync, f"over {point.backend}" if point.backend else "")))


def _lost(point: Point, loss: Loss) -> str:
    return f"{percent(loss.share)} {_cause(point, loss)}"


def _gained(loss: Loss) -> str:
    """Return where a point is faster than the ideal, which takes as long for each sample as its base."""
    much = percent(-loss.share) if loss.share > -1 else "more than a step"
    return f"{much} in {_CAUSES.get(loss.cause) or named(loss.cause)}"


def _cause(point: Point, loss: Loss) -> str:
    if loss.cause == "straggler":
        return _straggling(point, loss)
    if loss.cause == "compute":
        within = " (the exchange within)" if exchange_within_backward(point) else ""
        return f"slower {_CAUSES['compute']}{within}"
    if loss.cause == "exchange":
        by = exchanged_by(point)
        return _CAUSES["exchange"] + (f" ({by})" if by else "")
    whole = " (whole on each)" if loss.cause in {"optimizer", "other"} else ""
    return (_CAUSES.get(loss.cause) or named(loss.cause)) + whole


def _straggling(point: Point, loss: Loss) -> str:
    where = f"rank {loss.rank}"
    hosts = {rank.host for rank in point.ranks}
    if len(hosts) > 1 and loss.rank is not None:
        where += f" ({point.ranks[loss.rank].host})"
    if loss.phase == "data":
        return f"waiting for data on {where}"
    slow = straggler(point)
    longer = f", {seconds_text(slow.phase_s)} longer there" if slow else ""
    return f"waiting for {where} ({named(loss.phase)}{longer})"
