"""Finds faults that a script has on one worker already, by comparing two runs of it."""

import math

import numpy as np

from samestep.base.units import counted
from samestep.verify.compare import Deviation, beginning, is_half
from samestep.verify.run_record import RunRecord, same_samples
from samestep.verify.sample_causes import REPEATED_EPOCHS
from samestep.verify.verdict import Cause, Finding

_SEED = "Seed every random generator with a constant: no comparison is possible until then."

INCONCLUSIVE = ("unseeded", "unseeded-data")
"""Causes after which no comparison is possible."""


def other_samples(one: RunRecord, again: RunRecord) -> int | None:
    """Return the first step in which two runs of one script use different samples."""
    steps = range(min(one.steps, again.steps))
    return next((step for step in steps if not same_samples(one.samples(step), again.samples(step))), None)


def baseline_findings(reference: RunRecord, control: RunRecord) -> list[Finding]:
    """Return the faults of the script on one worker, from a run and one with disturbed gradients."""
    found = _unrepeatable(reference, control)
    losses = np.array([reference.losses(step)[0] for step in range(reference.steps)])
    if not np.any(losses):
        found.append(_fault("zero-loss", "the loss is zero in all steps, so equal runs prove nothing.", 0))
    known = [step for step in range(reference.steps) if reference.at(step).losses]
    nan = [step for step in known if np.isnan(reference.at(step).losses).any()]
    if nan and nan[-1] == known[-1]:
        found.append(_fault("nan-loss", "the last loss is NaN, so equal runs prove nothing.", nan[0]))
    if reference.facts.repeated_epochs:
        found.append(_fault("no-set-epoch", REPEATED_EPOCHS))
    return found


def _unrepeatable(reference: RunRecord, control: RunRecord) -> list[Finding]:
    """Return the differences between the two runs that appear before the gradients are disturbed."""
    if (step := other_samples(reference, control)) is not None:
        message = (
            f"two runs on one worker use different samples in step {step}, so no comparison is possible. "
            "Seed the data and their order."
        )
        return [_fault("unseeded-data", message, step)]
    if not control.steps:
        steps = counted(reference.steps, "step")
        return [
            _fault("unseeded", f"of two runs on one worker one has {steps}, the other 0 steps. {_SEED}", 0)
        ]
    found = [one for one in beginning(reference, control) if not one.is_rounding]
    return [_different_start(max(found, key=lambda one: one.value), reference, control)] if found else []


def _fault(cause: Cause, message: str, step: int | None = None) -> Finding:
    return Finding(cause=cause, message=message, workers=1, step=step)


def _different_start(most: Deviation, reference: RunRecord, control: RunRecord) -> Finding:
    """Return the finding that two runs start from different values."""
    what = most.quantity
    if what == "loss":
        one, other = (run.at(0).losses[:1] for run in (reference, control))
        what = f"losses, {one[0] if one else 'none'} and {other[0] if other else 'none'}"
    # A kernel of lower accuracy gives half of a type's digits; another seed gives none.
    is_small = most.value <= math.sqrt(reference.facts.epsilon) and not is_half(reference)
    advice = (
        "A missing seed makes a larger difference: a computation of varying accuracy (several threads?) or "
        "the time is the likely source, and as much counts as rounding here."
        if is_small
        else _SEED
    )
    return Finding(
        cause="unsteady" if is_small else "unseeded",
        message=f"two runs on one worker start with different {what}: the relative difference is "
        f"{most.value:.1e}, rounding explains {most.allowed:.1e}. {advice}",
        workers=1,
        step=0,
        max_relative_deviation=most.value if math.isfinite(most.value) else None,
        kind="exception" if is_small else "fault",
    )
