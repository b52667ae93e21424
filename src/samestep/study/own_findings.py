"""What is wrong with a script on one worker already, as two runs of it show."""

import math

import numpy as np

from samestep.base.units import counted
from samestep.study.causes import REPEATED_EPOCHS
from samestep.study.compare import Deviation, beginning, is_half
from samestep.study.seen import Seen, same_samples
from samestep.study.verdict import Finding

PROVE_NOTHING = ("unseeded", "unseeded-data")
"""Causes with which runs cannot be compared."""


def other_samples(one: Seen, again: Seen) -> int | None:
    """Return the first step in which two runs of one script use other samples."""
    steps = range(min(one.steps, again.steps))
    return next((step for step in steps if not same_samples(one.samples(step), again.samples(step))), None)


def own_findings(reference: Seen, control: Seen) -> list[Finding]:
    """Return what is wrong with the script on one worker.

    Args:
        reference: a run on one worker.
        control: another, its gradients disturbed by rounding.
    """
    found = _not_again(reference, control)
    losses = np.array([reference.losses(step)[0] for step in range(reference.steps)])
    if not np.any(losses):
        found.append(
            Finding(
                cause="zero-loss",
                message="the loss is zero in all steps: nothing is learnt, and equal runs prove nothing.",
                workers=1,
                step=0,
            )
        )
    known = [step for step in range(reference.steps) if reference.at(step).losses]
    nan = [step for step in known if np.isnan(reference.at(step).losses).any()]
    if nan and nan[-1] == known[-1]:
        found.append(
            Finding(
                cause="nan-loss",
                message="the loss is NaN in the end: nothing is learnt, and equal runs prove nothing.",
                workers=1,
                step=nan[0],
            )
        )
    if reference.facts.repeated_epochs:
        found.append(Finding(cause="no-set-epoch", message=REPEATED_EPOCHS, workers=1))
    return found


def _not_again(reference: Seen, control: Seen) -> list[Finding]:
    """Return what the second run does not do as the first, although nothing was disturbed yet."""
    if (step := other_samples(reference, control)) is not None:
        return [
            Finding(
                cause="unseeded-data",
                message=f"two runs on one worker use other samples in step {step}: the data or their order "
                "have no seed, so that nothing can be compared. Seed them.",
                workers=1,
                step=step,
            )
        ]
    if not control.steps:
        message = (
            f"of two runs on one worker one made {counted(reference.steps, 'step')}, the other none: "
            "something has no seed, or that of the time, so that nothing can be compared. Seed it."
        )
        return [Finding(cause="unseeded", message=message, workers=1, step=0)]
    apart = [one for one in beginning(reference, control) if not one.is_rounding]
    return [_apart(max(apart, key=lambda one: one.value), reference, control)] if apart else []


def _apart(most: Deviation, reference: Seen, control: Seen) -> Finding:
    """Return what two runs that begin apart are a sign of."""
    what = f"other {most.quantity}"
    if most.quantity == "loss":
        one, other = (run.at(0).losses[:1] for run in (reference, control))
        what = f"another loss, {one[0] if one else 'none'} and {other[0] if other else 'none'}"
    seen = (
        f"two runs on one worker begin with {what}: a relative difference of {most.value:.1e}, "
        f"where rounding explains {most.allowed:.1e}"
    )
    # A kernel of lower accuracy gives half of a type's digits; another seed gives none.
    is_small = most.value <= math.sqrt(reference.facts.epsilon) and not is_half(reference)
    meant = (
        "That is little for a missing seed: something is computed with fewer digits at times (by several "
        "threads?), or takes a little from the time. As much is taken for rounding here"
        if is_small
        else "Something has no seed, or that of the time, so that nothing can be compared. Seed it"
    )
    return Finding(
        cause="unsteady" if is_small else "unseeded",
        message=f"{seen}. {meant}.",
        workers=1,
        step=0,
        max_relative_deviation=most.value if math.isfinite(most.value) else None,
        is_exception=is_small,
    )
