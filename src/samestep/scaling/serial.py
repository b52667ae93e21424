"""The step at the fewest workers: whoever wastes time there is flattered by every speedup."""

from collections.abc import Mapping, Sequence

from samestep.scaling.advice import against_phase, trying
from samestep.scaling.study import Point
from samestep.scaling.words import counted, percent

_SLOW = {"data": 0.10, "to_device": 0.10, "optimizer": 0.30, "other": 0.20}
"""From which share of a step on a phase is too slow to be passed over."""

_BETTER_THAN_IDEAL = 1.15
"""From which efficiency on it is rather the fewest workers that were slow."""

_SAID = {
    "data": "waits {share} of its time for data",
    "to_device": "copies to the device for {share} of its time",
    "optimizer": "spends {share} of its time in the optimizer",
    "other": "spends {share} of its time beside data, forward, backward and optimizer",
}


def flattery(series: Sequence[Point]) -> str:
    """Return what is slow about the step at the fewest workers already; empty where nothing is.

    A speedup is a ratio: a slow step on one worker makes it larger, whatever the training takes in the end.

    Args:
        series: points of one mode and variant, by workers.
    """
    base = series[0]
    if base.oversubscribed:  # why it was slow is known, and told
        return ""
    return " ".join(one for one in (_slow(base), _idle(base), _outdone(base, series)) if one)


def outdone(series: Sequence[Point]) -> Point | None:
    """Return the number of workers that is far better than the ideal; None where none is.

    Then it is the fewest that were slow, and nothing said against them is of any worth.
    """
    fair = (point for point in series if not point.oversubscribed)
    best = max(fair, key=lambda point: point.efficiency, default=None)
    return best if best is not None and best.efficiency > _BETTER_THAN_IDEAL else None


def slowness(base: Point) -> str:
    """Return what the step at the fewest workers does for too much of its time; empty for nothing."""
    return " and ".join(
        _SAID[name].format(share=percent(share)) for name, share in _slow_phases(base).items()
    )


def _slow(base: Point) -> str:
    said = slowness(base)
    if not said:
        return ""
    step = f"The step at {counted(base.workers)} {said}"
    tried = trying([against_phase(name, base) for name in _slow_phases(base)])
    return f"{step}: speed that up first, since it makes the speedups look better. {tried}".rstrip()


def _idle(base: Point) -> str:
    """Return that the workers of a node leave half of its processors idle, or more."""
    if base.device != "cpu" or not base.threads or not base.processors:
        return ""
    # Which processors they may use they may all share.
    among = -(-base.workers // base.nodes)
    each = base.processors // among
    if each < 2 * base.threads:
        return ""
    threads = "1 thread" if base.threads == 1 else f"{base.threads} threads"
    who = "The one worker" if base.workers == 1 else f"Each of {base.workers} workers"
    return (
        f"{who} computes with {threads} and has {each} processors: "
        f"with --threads {each} it may be faster, and the speedups less."
    )


def _outdone(base: Point, series: Sequence[Point]) -> str:
    """Return what can hardly be: that each of several workers is much faster than the fewest are."""
    best = outdone(series)
    if best is None:
        return ""
    hampered = f" its {base.threads} threads hamper each other," if base.threads and base.threads > 1 else ""
    return (
        f"{counted(best.workers)} came to {percent(best.efficiency)} of the ideal, as where something runs "
        f"beside {counted(base.workers)},{hampered} or only a share fits into the caches. Measure again, "
        "several times and with other --threads."
    )


def _slow_phases(base: Point) -> Mapping[str, float]:
    """Return the phases that take too much of the step, and how much."""
    whole = sum(base.step_s.values())
    shares = {name: base.step_s.get(name, 0.0) / whole for name in _SLOW} if whole else {}
    return {name: share for name, share in shares.items() if share >= _SLOW[name]}
