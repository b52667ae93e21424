"""Finds what of a run cannot be compared with the run on one worker."""

from samestep.studies.verify.compare import Comparison
from samestep.studies.verify.printed_lines import has_fractions
from samestep.studies.verify.run_record import RunRecord
from samestep.studies.verify.sample_causes import padding
from samestep.studies.verify.verdict import Finding, NotCompared


def not_reached(reference: RunRecord) -> dict[NotCompared, str]:
    """Return what a run on one worker did not reach in its steps."""
    missing: dict[NotCompared, str] = {}
    if not reference.evaluated(reference.steps).size:
        missing["evaluation"] = "evaluation"
    samples = any(reference.samples(step).size for step in range(reference.steps))
    if not samples or reference.first_epoch() == reference.steps:
        missing["second-epoch"] = "second epoch"
    return missing


def not_compared(comparison: Comparison) -> dict[NotCompared, str]:
    """Return what one of the runs did not record."""
    missing: dict[NotCompared, str] = {}
    if not _has_loss(comparison):
        missing["loss"] = "loss (no backward from a single number)"
    if padding(comparison) is not None and not has_fractions(comparison.reference):
        missing["evaluation"] = "evaluation (it is padded, and the script prints no fraction)"
    return missing


def nothing_compared(comparison: Comparison) -> Finding | None:
    """Return the finding that neither losses nor parameters can be compared, if that is so."""
    steps = range(comparison.steps)
    if not steps or _has_loss(comparison) or any(comparison.reference.at(step).after for step in steps):
        return None
    return comparison.finding(
        "not-compared",
        "neither the loss nor the parameters of the runs can be compared, so nothing is proven.",
    )


def _has_loss(comparison: Comparison) -> bool:
    runs = (comparison.reference, comparison.run)
    return any(all(run.has_loss(step) for run in runs) for step in range(comparison.steps))
