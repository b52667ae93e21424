"""Formats points as words: speed, efficiency and overhead by cause."""

from collections.abc import Sequence

from samestep.base import units
from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.overhead_causes import straggler
from samestep.studies.scaling.analysis.study import Loss, Point

NOTABLE = 0.01
"""The smallest share of a step that is reported."""

NOTHING_S = 1e-9
"""A wait that is too short for any clock, so there was none."""

# The names of phases, and of causes of overhead, in a sentence.
_NAMES = {
    "data": "waiting for data",
    "to_device": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "exposed_sync": "exposed communication",
    "optimizer": "the optimizer",
    "other": "other work",
    "compute": "forward and backward",
    "exchange": "exposed communication",
    "waiting": "waiting for varying ranks",
    "straggler": "waiting for one rank",
}


def percent(share: float) -> str:
    """Return a share as a whole percentage.

    >>> percent(0.849)
    '85 %'
    """
    return f"{100 * share:.0f} %"


def share_text(share: float) -> str:
    """Return a share as a percentage, a small one with a decimal.

    >>> share_text(0.012)
    '1.2 %'
    """
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def times(factor: float) -> str:
    """Return a speedup; one below 2 has two decimals, since they matter near 1.

    >>> [times(0.146), times(1.04), times(3.42), times(25.7)]
    ['0.15x', '1.04x', '3.4x', '26x']
    """
    return f"{factor:.{2 if factor < 1.995 else 1 if factor < 9.95 else 0}f}x"


def amount(value: float) -> str:
    """Return a rate or a number of samples with four significant digits.

    >>> [amount(value) for value in (0.12344, 64, 1281167)]
    ['0.1234', '64', '1,281,167']
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def counted(workers: int) -> str:
    """Return a number of workers.

    >>> [counted(1), counted(4)]
    ['1 worker', '4 workers']
    """
    return units.counted(workers, "worker")


def oversubscribed_baseline(base: Point) -> str:
    """Return why there is no conclusion against an oversubscribed baseline.

    >>> oversubscribed_baseline(Point(workers=2, samples_per_second=1, speedup=2, efficiency=1))
    'the 2-worker baseline was oversubscribed'
    """
    return f"the {base.workers}-worker baseline was oversubscribed"


def phase_name(phase: str) -> str:
    """Return the name of a step's phase, or of a cause of overhead, in a sentence."""
    return _NAMES.get(phase, phase)


def speed(point: Point, base: Point) -> str:
    """Return speedup and efficiency of a point against `base`, and what each is against on CPUs.

    >>> one, two = (Point(workers=n, samples_per_second=n, speedup=n, efficiency=0.8) for n in (1, 2))
    >>> speed(two, one)
    '2 workers: 2.0x, 80 %'
    """
    n, efficiency, over = counted(point.workers), percent(point.efficiency), over_words(point, base)
    if point.baseline_cores_of == 1:
        return f"{n}: {times(point.speedup)}{f' over {over}' if over else ''}, {efficiency}"
    alike = f"{times(point.efficiency * point.workers)} over {like_each(base)}, {efficiency}"
    return f"{n}: {times(point.speedup)} over {over}, {alike}"


def over_words(point: Point, base: Point) -> str:
    """Return the one worker that the speedup of `point` is over; empty if it is not one on CPUs."""
    if point.baseline_cores_of == 1:
        return like_each(base)
    return f"one process with {threads_of(point.baseline_cores_of, base)}"


def threads_of(cores_of: int, base: Point) -> str:
    """Return as text the threads of one worker on the cores of `cores_of` workers such as `base`.

    >>> threads_of(4, Point(workers=1, threads=2, samples_per_second=1, speedup=1, efficiency=1))
    '8 threads'
    """
    return units.counted((base.threads or 1) * cores_of, "thread")


def like_each(base: Point) -> str:
    """Return a baseline of one worker on CPUs in words; empty for others.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 1}
    >>> like_each(Point(workers=1, device="cpu", threads=4, **rate))
    'one worker with 4 threads'
    """
    if base.workers > 1 or base.device != "cpu" or not base.threads:
        return ""
    return f"one worker with {threads_of(1, base)}"


def overhead(point: Point) -> str:
    """Return the overhead of a point by cause, and its gains; empty if its phases are unknown."""
    if not point.losses:
        return ""
    parts = [f"{percent(loss.share)} {_cause(point, loss)}" for loss in notable_losses(point)]
    gains = [
        f"{percent(-loss.share) if loss.share > -1 else 'more than a step'} in {phase_name(loss.cause)}"
        for loss in reversed(point.losses)
        if loss.share <= -NOTABLE
    ]
    gained = f" Gained: {', '.join(gains[:2])}." if gains else ""
    return f"Overhead: {', '.join(parts) or f'below {percent(NOTABLE)}'}.{gained}"


def notable_losses(point: Point) -> Sequence[Loss]:
    """Return the losses that are large enough to be reported, at most four."""
    return [loss for loss in point.losses if loss.share >= NOTABLE][:4]


def is_communication_hidden(point: Point) -> bool:
    """Return whether backward hides all communication of several workers, or includes it."""
    return point.workers > 1 and bool(point.step_s) and (point.exchange_s or 0.0) <= NOTHING_S


def sync_words(point: Point) -> str:
    """Return the gradient synchronization and its transport; empty if both are unknown.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 0.5}
    >>> sync_words(Point(workers=2, sync="ddp", backend="gloo", **rate))
    'ddp over gloo'
    """
    return " ".join(filter(None, (point.sync, f"over {point.backend}" if point.backend else "")))


def _cause(point: Point, loss: Loss) -> str:
    name = phase_name(loss.cause)
    if loss.cause == "straggler":
        return _straggling(point, loss)
    if loss.cause == "compute":
        return f"slower {name}" + (" (includes communication)" if is_communication_hidden(point) else "")
    if loss.cause == "exchange":
        by = sync_words(point)
        return name + (f" ({by})" if by else "")
    return name + (" (computed on every rank)" if loss.cause in {"optimizer", "other"} else "")


def _straggling(point: Point, loss: Loss) -> str:
    rank = f"rank {loss.rank}"
    if loss.rank is not None and len({one.host for one in point.ranks}) > 1:
        rank += f" ({point.ranks[loss.rank].host})"
    if loss.phase == "data":
        return f"waiting for data on {rank}"
    slow = straggler(point)
    longer = f", {seconds_text(slow.phase_s)} longer there" if slow else ""
    return f"waiting for {rank} ({phase_name(loss.phase)}{longer})"
