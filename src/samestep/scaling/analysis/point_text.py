"""Formats points as text: speedup, efficiency, phases and baselines."""

from collections.abc import Sequence

from samestep.base import units
from samestep.base.units import percent
from samestep.scaling.analysis.study import Loss, Point

NOTABLE = 0.01
"""The smallest share of a step that is reported."""

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


def times(factor: float) -> str:
    """Return a speedup as text.

    >>> times(3.4)
    '3.40x'
    """
    return f"{factor:.2f}x" if factor < 100 else f"{factor:.0f}x"


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


def phase_name(phase: str) -> str:
    """Return the name of a step's phase, or of a cause of overhead, in a sentence."""
    return _NAMES.get(phase, phase)


def gain(point: Point, base: Point) -> str:
    """Return speedup, with its interval, and efficiency of a point against `base`, as a clause.

    >>> one, two = (Point(workers=n, samples_per_second=n, speedup=n, efficiency=0.8) for n in (1, 2))
    >>> gain(two, one)
    '2 workers: speedup 2.00x, efficiency 80 %'
    """
    over = over_words(point, base)
    known = "" if point.between is None else f" ({' to '.join(map(times, point.between))})"
    speedup = f"speedup {times(point.speedup)}{known}{f' over {over}' if over else ''}"
    return f"{counted(point.workers)}: {speedup}, efficiency {percent(point.efficiency)}"


def over_words(point: Point, base: Point) -> str:
    """Return the one worker that the speedup of `point` is over; empty if it is not one on CPUs."""
    if point.baseline_cores_of == 1:
        return like_each(base)
    return f"1 process with {threads_of(point.baseline_cores_of, base)}"


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
    '1 worker with 4 threads'
    """
    if base.workers > 1 or base.device != "cpu" or not base.threads:
        return ""
    return f"1 worker with {threads_of(1, base)}"


def notable_losses(point: Point) -> Sequence[Loss]:
    """Return the losses that are large enough to be reported, at most four."""
    return [loss for loss in point.losses if loss.share >= NOTABLE][:4]


def sync_words(point: Point) -> str:
    """Return the gradient synchronization and its transport; empty if both are unknown.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 0.5}
    >>> sync_words(Point(workers=2, sync="ddp", backend="gloo", **rate))
    'ddp over gloo'
    """
    return " ".join(filter(None, (point.sync, f"over {point.backend}" if point.backend else "")))
