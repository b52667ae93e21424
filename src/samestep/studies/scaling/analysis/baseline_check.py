"""Checks the baseline: a slow step at the smallest number of workers makes every speedup look better."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from samestep.studies.scaling.analysis.advice import advice_words, against_phase, chosen
from samestep.studies.scaling.analysis.point_text import counted, percent
from samestep.studies.scaling.analysis.study import Finding, Point

_SLOW = {"data": 0.10, "to_device": 0.10, "optimizer": 0.30, "other": 0.20}
"""The share of a step from which on each phase is reported as slow."""

_BETTER_THAN_IDEAL = 1.15
"""Above this efficiency the baseline was disturbed, rather than the larger runs fast."""

_WORDS = {
    "data": "waits {share} of its time for data",
    "to_device": "copies to the device for {share} of its time",
    "optimizer": "spends {share} of its time in the optimizer",
    "other": "spends {share} of its time outside of data, forward, backward and optimizer",
}


def baseline_findings(series: Sequence[Point]) -> Iterator[Finding]:
    """Yield what is slow at the baseline.

    A speedup is a ratio: a slow step on one worker makes it larger without making the training faster.

    Args:
        series: points of one mode and variant, by workers.
    """
    base = series[0]
    if base.oversubscribed:  # the summary already gives this reason
        return
    alone = (base.workers,)
    if slow := _slow_phases(base):
        advised = chosen([against_phase(name, base) for name in slow])
        words = f"The step at {counted(base.workers)} {slowness(base)}: speed that up first."
        yield Finding("baseline", "slow-phase", f"{words} {advice_words(advised)}".rstrip(), alone)
        yield from (replace(one, workers=alone) for one in advised)
    if words := _idle_cores(base):
        yield Finding("baseline", "idle-cores", words, alone)
    if best := outdone(series):
        yield Finding("baseline", "superlinear", _superlinear(best, base), (base.workers, best.workers))


def outdone(series: Sequence[Point]) -> Point | None:
    """Return the point that is much faster than ideal; None if there is none.

    The baseline was then slow, and nothing can be concluded from the speedups.
    """
    fair = (point for point in series if not point.oversubscribed)
    best = max(fair, key=lambda point: point.efficiency, default=None)
    return best if best is not None and best.efficiency > _BETTER_THAN_IDEAL else None


def slowness(base: Point) -> str:
    """Return the phases that take too much of the baseline's step; empty for none."""
    return " and ".join(
        _WORDS[name].format(share=percent(share)) for name, share in _slow_phases(base).items()
    )


def _idle_cores(base: Point) -> str:
    """Return that the workers of a node leave at least half of its cores idle; empty if they do not."""
    if base.device != "cpu" or not base.threads or not base.processors:
        return ""
    # Workers of a node can share its cores, so each counts for its part of them.
    per_node = -(-base.workers // base.nodes)
    each = base.processors // per_node
    if each < 2 * base.threads:
        return ""
    threads = "1 thread" if base.threads == 1 else f"{base.threads} threads"
    subject = "The one worker" if base.workers == 1 else f"Each of {base.workers} workers"
    return (
        f"{subject} computes with {threads} and has {each} cores. With --threads {each} the baseline can be "
        "faster, and the speedups smaller."
    )


def _superlinear(best: Point, base: Point) -> str:
    threads = f" its {base.threads} threads slow each other down," if (base.threads or 0) > 1 else ""
    return (
        f"{counted(best.workers)} reached {percent(best.efficiency)} of the ideal. Either another program "
        f"disturbed {counted(base.workers)},{threads} or only a shard fits into the caches: measure again, "
        "with more --repeats and other --threads."
    )


def _slow_phases(base: Point) -> Mapping[str, float]:
    """Return the phases that take too much of the step, with their shares."""
    whole = sum(base.step_s.values())
    shares = {name: base.step_s.get(name, 0.0) / whole for name in _SLOW} if whole else {}
    return {name: share for name, share in shares.items() if share >= _SLOW[name]}
