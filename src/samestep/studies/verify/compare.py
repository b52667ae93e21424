"""Compares two runs of one training step by step; a third run measures the effect of rounding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from samestep.studies.verify.run_record import RunRecord, Vector, relative

Measure: TypeAlias = Callable[[RunRecord, RunRecord, int], float]
MARGIN = 100.0
"""Allowed deviation of a run, as a multiple of the control's."""
ROUNDING = 16.0
"""Units in the last place that rounding alone adds to the result of a step."""
_HALF = 1e-4
"""A type with a coarser unit in the last place is a half type, whose rounding leaves no room for a margin."""
_MOST_FOR_HALF = 0.1  # largest relative rounding error of a half type
_AT_FIRST = 2.0
"""Units in the last place of a half type that a sum over many elements is off before the first update."""
MOST = 0.3
"""Largest relative deviation that counts as rounding, unless the control deviates by more."""
_SAME_RATE = 1e-9  # relative rounding of learning rates, which are computed in double precision


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of a quantity from the reference in one step, and the allowed one; both are relative."""

    quantity: str
    step: int
    value: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the deviation."""
        return self.value <= self.allowed


def deviations(reference: RunRecord, run: RunRecord, control: RunRecord) -> list[Deviation]:
    """Return the deviation of each quantity in each step, in step order.

    Args:
        reference: the run on one worker.
        run: the run that is compared with it.
        control: the reference again, its gradients disturbed by rounding.
    """
    found = []
    envelope: dict[str, float] = {}
    for step in range(min(reference.steps, run.steps)):
        for quantity, measure in MEASURES.items():
            # The next step counts too: rounding can appear one step earlier in the run than in the control.
            ahead = [one for one in (step, step + 1) if one < min(reference.steps, control.steps)]
            most = max((measure(control, reference, one) for one in ahead), default=0.0)
            envelope[quantity] = max(envelope.get(quantity, 0.0), most)
            allowed = (
                _AT_FIRST * reference.facts.epsilon
                if step == 0 and quantity in _SUMS and is_half(reference)
                else allowed_deviation(envelope[quantity], _floor(quantity, reference, step))
            )
            found.append(Deviation(quantity, step, measure(run, reference, step), allowed))
    return found


def is_half(run: RunRecord) -> bool:
    """Return whether a run computes in half precision, where two roundings are near a percent."""
    return run.facts.epsilon > _HALF


def beginning(reference: RunRecord, control: RunRecord) -> list[Deviation]:
    """Return the deviations between two runs of one script before its gradients are disturbed."""
    allowed = rounding_of(reference.facts.epsilon)
    one, other = control.at(0), reference.at(0)
    return [
        Deviation(quantity, 0, relative(np.array(a), np.array(b)), allowed)
        for quantity, a, b in (
            ("parameters", one.before, other.before),
            ("loss", one.losses[:1], other.losses[:1]),
        )
    ]


def largest(found: Sequence[Deviation]) -> dict[str, float]:
    """Return the largest deviation of each quantity."""
    return {name: max((one.value for one in found if one.quantity == name), default=0.0) for name in MEASURES}


def rounding_of(epsilon: float) -> float:
    """Return the relative tolerance of results in a type with this unit in the last place."""
    if epsilon > _HALF:
        return min(ROUNDING * epsilon, _MOST_FOR_HALF)
    return MARGIN * ROUNDING * epsilon


def allowed_deviation(usual: float, floor: float) -> float:
    """Return the allowed deviation of a run where the control deviates by `usual`."""
    grown = MARGIN * usual
    return max(floor, grown if usual > MOST else min(grown, MOST))


def _floor(quantity: str, reference: RunRecord, step: int) -> float:
    if quantity == "learning rate":
        return _SAME_RATE
    rounding = rounding_of(reference.facts.epsilon)
    if quantity != "update":
        return rounding
    # An update is the difference of two rounded parameters.
    moved = float(np.linalg.norm(reference.update(step)))
    size = float(np.linalg.norm(reference.parameters(step)))
    return rounding + rounding_of(reference.facts.parameter_epsilon) * size / moved if moved else np.inf


def _loss(one: RunRecord, other: RunRecord, step: int) -> float:
    if not (one.has_loss(step) and other.has_loss(step)):
        return 0.0
    # Losses that are divided by a rank's number of backwards have equal sums, others equal means.
    return min(_loss_deviation(one, other, step, total_of) for total_of in (np.mean, np.sum))


def _loss_deviation(one: RunRecord, other: RunRecord, step: int, total_of: Callable[..., Any]) -> float:
    target = other.losses(step, total_of)[0]
    scale = max(abs(target), 1e-3 * abs(other.losses(0, total_of)[0]))
    here = one.losses(step, total_of)
    if np.isnan(target):
        return 0.0 if np.isnan(here[0]) else float("inf")
    best = min(abs(loss - target) for loss in here)
    return best / scale if scale else (0.0 if not best else float("inf"))


def _gradient_norm(one: RunRecord, other: RunRecord, step: int) -> float:
    here, usual = one.at(step).gradient_norm, other.at(step).gradient_norm
    return 0.0 if np.isnan(here) else relative(_number(here), _number(usual))


MEASURES: Mapping[str, Measure] = {
    "learning rate": lambda one, other, step: relative(
        np.array(one.at(step).learning_rates), np.array(other.at(step).learning_rates)
    ),
    "loss": _loss,
    "gradient": lambda one, other, step: relative(one.gradient(step), other.gradient(step)),
    "gradient norm": _gradient_norm,
    "update": lambda one, other, step: relative(one.update(step), other.update(step)),
    "parameters": lambda one, other, step: relative(one.parameters(step), other.parameters(step)),
}


_SUMS = ("loss", "gradient norm")
"""Sums over many elements: their relative rounding error is smaller than that of one element."""


def _number(value: float) -> Vector:
    return np.array([value])
