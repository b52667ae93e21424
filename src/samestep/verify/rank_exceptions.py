"""Finds the legitimate differences between the ranks of a distributed script."""

from collections.abc import Set

from samestep.verify.compare import Comparison
from samestep.verify.trace import Facts
from samestep.verify.verdict import Cause, Finding


def exceptions_of(comparison: Comparison) -> list[Finding]:
    """Return the legitimate differences between the ranks of a run, with the largest deviation."""
    run = comparison.run
    facts = [trace.facts for trace in run.traces]
    is_native = not run.runs_once
    possible: tuple[tuple[Cause, str, bool], ...] = (
        (
            "batch-norm-local",
            "batch norm takes its statistics over each worker's share",
            any(rank_facts.batch_norm for rank_facts in facts) and is_native,
        ),
        (
            *_draws({rank_facts.stream for rank_facts in facts}),
            any(rank_facts.drew or _drops(rank_facts) for rank_facts in facts) and is_native,
        ),
        (
            "augmentation-per-worker",
            "each worker draws its own augmentation",
            any(rank_facts.augmented for rank_facts in facts) and is_native,
        ),
        (
            "compressed-gradients",
            f"{run.facts.compressed} compresses the gradients of each rank before they are averaged",
            bool(run.facts.compressed),
        ),
    )
    return [
        Finding(
            cause=cause,
            message=message,
            workers=run.size,
            max_relative_deviation=comparison.largest_deviation,
            kind="exception",
        )
        for cause, message, applies in possible
        if applies
    ]


def _drops(facts: Facts) -> bool:
    """Return whether values were dropped, also where the generator's state was restored after the draw."""
    return any(rate for rates in facts.dropouts.values() for rate in rates)


def _draws(streams: Set[int]) -> tuple[Cause, str]:
    """Return the exception of random numbers whose generators are in these states on the ranks."""
    if len(streams) == 1 and any(streams):
        return (
            "random-alike-on-workers",
            "all workers draw the same dropout or noise for different samples (seed with seed + rank)",
        )
    return "random-per-worker", "each worker draws its own dropout or noise"


def of_own_generators(neutral: Comparison) -> Finding | None:
    """Return the exception that ranks draw noise from generators of the script, if a neutral run found it."""
    streams = {trace.facts.own_stream for trace in neutral.run.traces}
    if neutral.run.runs_once or not any(streams):
        return None
    cause, message = _draws(streams)
    return Finding(cause=cause, message=message, workers=neutral.size, kind="exception")
