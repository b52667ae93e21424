"""Finds prints that differ though the training is the same."""

import math

from samestep.verify.compare import FAULT_OF_SAMESTEP, Comparison
from samestep.verify.printed_lines import deviating_numbers, deviating_text, of_progress
from samestep.verify.sample_causes import evaluates_alone
from samestep.verify.verdict import Cause, Finding

_OF_ALL_SAMPLES = (
    "rank 0 evaluates all samples itself, so the number is of its shard of the training, or it depends on "
    "the size of a batch. Sum it over the ranks, or weight the mean of each batch by its samples."
)
_MEAN_OF_MEANS = (
    "the ranks combine it, but as a mean of means, in which batches or shards of unequal size have equal "
    "weight. Sum values and numbers of samples over the ranks, and divide once."
)
_SUM_OF_MEANS = (
    "the ranks sum it, or divide the sum twice. Sum values and numbers of samples over the ranks, and divide "
    "once."
)


_OTHER_COMBINATION = (
    "the ranks combine numbers in that evaluation, but not to this result. Sum counts over the ranks, not "
    "means, and divide once by the number of all samples."
)


def printed_number(comparison: Comparison) -> Finding | None:
    """Find printed numbers that differ though the training is the same."""
    found = deviating_numbers(comparison.reference, comparison.run, comparison.control)
    if not found:
        return None
    own = {id(one) for one in of_progress(found, comparison.reference)}
    # A number that is not the loss of rank 0's share is the graver fault.
    worst = max(found, key=lambda one: (id(one) not in own, one.value))
    cause: Cause
    if id(worst) in own:
        cause, why = "local-print", "rank 0 prints the progress of its own shard there, not a result."
    elif comparison.run.runs_once:
        cause, why = "printed", FAULT_OF_SAMESTEP
    elif worst.is_combined:
        cause, why = "local-metric", _SUM_OF_MEANS if worst.is_multiple else _MEAN_OF_MEANS
    elif any(comparison.run.combined()) and not comparison.reference.combined():
        cause, why = "local-metric", _OTHER_COMBINATION
    elif evaluates_alone(comparison):
        cause, why = "local-metric", _OF_ALL_SAMPLES
    else:
        cause, why = "local-metric", "rank 0 prints it of its own shard. Sum it over the ranks."
    return Finding(
        cause=cause,
        message=f"the training is the same, but a number in {worst.line.strip()!r} deviates by "
        f"{worst.value:.1e} from {worst.usual.strip()!r}: {why}",
        workers=comparison.size,
        max_relative_deviation=worst.value if math.isfinite(worst.value) else None,
        kind="exception" if id(worst) in own else "fault",
    )


def printed_text(comparison: Comparison) -> Finding | None:
    """Find lines of other words, or without a partner, though the training is the same.

    A distributed script may well print something else for each number of workers: there it is an exception.
    """
    found = deviating_text(comparison.reference, comparison.run, comparison.control)
    if found is None:
        return None
    is_serial = comparison.run.runs_once
    usual, here = (repr(line.strip()) if line else "no such line" for line in found)
    return Finding(
        cause="printed-text",
        message=f"the training is the same, but rank 0 prints {here}, one worker {usual}."
        + (f" {FAULT_OF_SAMESTEP}" if is_serial else ""),
        workers=comparison.size,
        kind="fault" if is_serial else "exception",
    )
