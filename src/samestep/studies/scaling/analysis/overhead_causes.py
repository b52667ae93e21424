"""Computes overhead by cause: the time of a point's step minus that of the ideal step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.study import PHASES, Loss, Point, Rank

# The phases in which a rank waits for no other.
_OWN = tuple(name for name in PHASES if name != "exposed_sync")
_MOSTLY = 0.5  # the smallest part of all waiting that a rank must cause to be named as the straggler


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that other ranks wait for, and the phase that is longer there, by some seconds of a step."""

    rank: int
    phase: str
    phase_s: float


def with_losses(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return `points`, each with its losses against the baseline of its mode and variant.

    In the ideal step each phase takes as long per sample as at the baseline. The shares of all losses, with
    the negative ones, add up to 1 less the efficiency. With an oversubscribed baseline there are no losses.
    """
    bases = {key: series[0] for key, series in series_of(points).items()}
    return tuple(replace(point, losses=_losses(point, bases[point.mode, point.variant])) for point in points)


def straggler(point: Point) -> Straggler | None:
    """Return the rank that causes most of the waiting; None if it is for varying ranks."""
    if len(point.ranks) < 2 or not point.waiting_s or not all(rank.step_s for rank in point.ranks):
        return None
    slowest = max(point.ranks, key=_busy)
    others = [rank for rank in point.ranks if rank is not slowest]
    excess = _busy(slowest) - median_low(map(_busy, others))
    if excess * len(others) / len(point.ranks) < _MOSTLY * point.waiting_s:
        return None
    more = {name: slowest.step_s[name] - median_low(rank.step_s[name] for rank in others) for name in _OWN}
    phase = max(more, key=lambda name: more[name])
    return Straggler(slowest.rank, phase, more[phase])


def _busy(rank: Rank) -> float:
    return sum(rank.step_s.get(name, 0.0) for name in _OWN)


def _losses(point: Point, base: Point) -> tuple[Loss, ...]:
    whole = sum(point.step_s.values())
    if point.workers == base.workers or base.oversubscribed or not whole or not base.step_s:
        return ()
    share = _ideal_share(point, base)
    lost = {name: point.step_s[name] - share * base.step_s[name] for name in PHASES}
    synced = lost.pop("exposed_sync")
    waiting = (point.waiting_s or 0.0) - share * (base.waiting_s or 0.0)
    slow = straggler(point)
    by_cause = {
        "exchange": synced - waiting,
        "waiting": 0.0 if slow else waiting,
        "straggler": 0.0,
        **{name: lost[name] for name in ("data", "to_device", "optimizer", "other")},
        "compute": lost["forward"] + lost["backward"],
    }
    if slow:  # the mean over ranks includes a part of its excess, which the others wait for as well
        own = slow.phase_s / len(point.ranks)
        by_cause["compute" if slow.phase in {"forward", "backward"} else slow.phase] -= own
        by_cause["straggler"] = waiting + own
    named: dict[str, Any] = {"phase": slow.phase, "rank": slow.rank} if slow else {}
    losses = [
        Loss(cause=cause, share=seconds / whole, **(named if cause == "straggler" else {}))
        for cause, seconds in by_cause.items()
        if seconds
    ]
    return tuple(sorted(losses, key=lambda loss: -loss.share))


def _ideal_share(point: Point, base: Point) -> float:
    """Return the length of the ideal step divided by that of `base`: the ratio of a worker's samples."""
    times = point.workers / base.workers
    if point.global_batch is None or base.global_batch is None:
        return 1.0 if point.mode == "weak" else 1 / times
    return point.global_batch / base.global_batch / times
