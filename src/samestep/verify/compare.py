"""Compares the steps of a run on several workers with those on one; a third run measures rounding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from samestep.verify.run_record import RunRecord, relative, same_samples
from samestep.verify.tensor_summary import is_half_epsilon
from samestep.verify.verdict import Cause, Finding, Origin

Measure: TypeAlias = Callable[[RunRecord, RunRecord, int], float]
MARGIN = 100.0
"""Allowed deviation of a run, as a multiple of the control's: a guess, as the next. Together they allow 2e-4
in single precision, where faults are 1e-2 and more. The rounding of half types leaves no room for it."""
ROUNDING = 16.0
"""Units in the last place that rounding alone adds to the result of a step."""
_MOST_FOR_HALF = 0.1
"""Largest relative rounding error of a half type: a guess, near 16 units of bfloat16, which are 0.125."""
_AT_FIRST = 2.0
"""Units in the last place of a half type that a sum over many elements is off before the first update."""
MOST = 0.3
"""Largest relative deviation that counts as rounding, unless the control deviates by more: a gradient that is
the sum over two ranks deviates by 1, and one that is divided twice by 0.5."""
_SAME_RATE = 1e-9
"""Relative rounding of learning rates, which are computed in double precision; a slow schedule that steps N
times as often changes them by more."""
_SMALL_LOSS = 1e-3
"""Part of the first loss below which a loss has no relative deviation: it is a difference of larger
numbers."""
_SUMS = ("loss", "gradient norm")
"""Sums over many elements: their relative rounding error is smaller than that of one element."""
_BEFORE_UPDATE = ("loss", "gradient", "gradient norm")
"""Quantities of a step that are known before its update; other samples change them."""
FAULT_OF_SAMESTEP = (
    "The script is serial, so this is a fault of samestep and not of the script: train it on one worker, and "
    "report it."
)
_WHERE: Mapping[Origin, str] = {
    "one worker": "on one worker",
    "golden": "in the golden run",
    "uninterrupted": "in the uninterrupted run",
}


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
    all_deviations = []
    envelope: dict[str, float] = {}
    for step in range(min(reference.steps, run.steps)):
        for quantity, measure in MEASURES.items():
            # The next step counts too: rounding can appear one step earlier in the run than in the control.
            ahead = [index for index in (step, step + 1) if index < min(reference.steps, control.steps)]
            most = max((measure(control, reference, index) for index in ahead), default=0.0)
            envelope[quantity] = max(envelope.get(quantity, 0.0), most)
            allowed = (
                _AT_FIRST * reference.facts.epsilon
                if step == 0 and quantity in _SUMS and is_half(reference)
                else allowed_deviation(envelope[quantity], _floor(quantity, reference, step))
            )
            all_deviations.append(Deviation(quantity, step, measure(run, reference, step), allowed))
    return all_deviations


def is_half(run: RunRecord) -> bool:
    """Return whether a run computes in half precision, where two roundings are near a percent."""
    return is_half_epsilon(run.facts.epsilon)


def beginning(reference: RunRecord, control: RunRecord) -> list[Deviation]:
    """Return the deviations between two runs of one script before its gradients are disturbed."""
    allowed = rounding_of(reference.facts.epsilon)
    disturbed, usual = control.at(0), reference.at(0)
    return [
        Deviation(quantity, 0, relative(np.array(a), np.array(b)), allowed)
        for quantity, a, b in (
            ("parameters", disturbed.before, usual.before),
            ("loss", disturbed.losses[:1], usual.losses[:1]),
        )
    ]


def largest(all_deviations: Sequence[Deviation]) -> dict[str, float]:
    """Return the largest deviation of each quantity."""
    return {
        name: max(
            (deviation.value for deviation in all_deviations if deviation.quantity == name), default=0.0
        )
        for name in MEASURES
    }


def rounding_of(epsilon: float) -> float:
    """Return the relative tolerance of results in a type with this unit in the last place."""
    if is_half_epsilon(epsilon):
        return min(ROUNDING * epsilon, _MOST_FOR_HALF)
    return MARGIN * ROUNDING * epsilon


def allowed_deviation(usual: float, floor: float) -> float:
    """Return the allowed deviation of a run where the control deviates by `usual`."""
    grown = MARGIN * usual
    return max(floor, grown if usual > MOST else min(grown, MOST))


def are_same_rates(rates: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether learning rates are equal up to rounding."""
    return len(rates) == len(expected) and bool(np.allclose(rates, expected, rtol=_SAME_RATE, atol=0))


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


def _loss(run: RunRecord, reference: RunRecord, step: int) -> float:
    if not (run.has_loss(step) and reference.has_loss(step)):
        return 0.0
    # Losses that are divided by a rank's number of backwards have equal sums, others equal means.
    return min(_loss_deviation(run, reference, step, total_of) for total_of in (np.mean, np.sum))


def _loss_deviation(run: RunRecord, reference: RunRecord, step: int, total_of: Callable[..., Any]) -> float:
    first, target = (reference.losses(index, total_of)[0] for index in (0, step))
    here = run.losses(step, total_of)
    if not np.isfinite(target):  # as where a scaled loss is infinite and its step is skipped
        return 0.0 if np.array_equal(here[0], target, equal_nan=True) else float("inf")
    scale = max(abs(target), _SMALL_LOSS * abs(first) if np.isfinite(first) else 0.0)
    best = min(abs(loss - target) for loss in here)
    return best / scale if scale else (0.0 if not best else float("inf"))


def _gradient_norm(run: RunRecord, reference: RunRecord, step: int) -> float:
    here, usual = run.at(step).gradient_norm, reference.at(step).gradient_norm
    return 0.0 if np.isnan(here) else relative(np.array([here]), np.array([usual]))


MEASURES: Mapping[str, Measure] = {
    "learning rate": lambda run, reference, step: relative(
        np.array(run.at(step).learning_rates), np.array(reference.at(step).learning_rates)
    ),
    "loss": _loss,
    "gradient": lambda run, reference, step: relative(run.gradient(step), reference.gradient(step)),
    "gradient norm": _gradient_norm,
    "update": lambda run, reference, step: relative(run.update(step), reference.update(step)),
    "parameters": lambda run, reference, step: relative(run.parameters(step), reference.parameters(step)),
}


@dataclass(frozen=True)
class Comparison:
    """A run, its reference, and a control that measures rounding."""

    reference: RunRecord  # the run on one worker
    run: RunRecord  # the run on several workers
    control: RunRecord  # the reference again, its gradients disturbed by rounding
    # first step with another learning rate, whose update and later steps are not compared
    other_rates: int | None = field(default=None, kw_only=True)

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.run.size

    @property
    def where(self) -> str:
        """Words for the place of a value of the reference, such as "on one worker"."""
        return _WHERE[self.reference.origin]

    @property
    def fault_of_samestep(self) -> str:
        """Words for a difference that only samestep can make; empty if the script may have changed."""
        return FAULT_OF_SAMESTEP if self.reference.origin == "one worker" else ""

    @cached_property
    def steps(self) -> int:
        """Number of steps that both runs have."""
        return min(self.reference.steps, self.run.steps)

    @cached_property
    def deviations(self) -> Sequence[Deviation]:
        """Deviations of all steps."""
        all_deviations, last = deviations(self.reference, self.run, self.control), self.other_rates
        if last is None:
            return all_deviations
        return [
            deviation
            for deviation in all_deviations
            if deviation.step < last or (deviation.step == last and deviation.quantity in _BEFORE_UPDATE)
        ]

    @cached_property
    def unexplained(self) -> Sequence[Deviation]:
        """Deviations that rounding does not explain."""
        return [deviation for deviation in self.deviations if not deviation.is_rounding]

    @cached_property
    def first(self) -> Deviation | None:
        """The first deviation that rounding does not explain."""
        return self.first_of(None)

    @cached_property
    def first_epoch(self) -> int:
        """Number of steps before a sample repeats in either run."""
        return min(self.reference.first_epoch(), self.run.first_epoch())

    def until_samples_differ(self, findings: Sequence[Finding]) -> "Comparison":
        """Return the comparison of the steps before the first with other samples."""
        if not findings:
            return self
        step = min(self.first_epoch if finding.step is None else finding.step for finding in findings)
        records = (record.until(step) for record in (self.reference, self.run, self.control))
        return Comparison(*records)

    def until_rates_differ(self, step: int) -> "Comparison":
        """Return the comparison of what comes before the update of the first step with another rate."""
        return replace(self, other_rates=step)

    def first_of(self, quantity: str | None) -> Deviation | None:
        """Return the first deviation of a quantity, or of any, that rounding does not explain."""
        matching = (deviation for deviation in self.unexplained if quantity in (None, deviation.quantity))
        return next(matching, None)

    @cached_property
    def other_samples(self) -> int | None:
        """The step of the first difference, if that step computes a different result from different samples.

        Different sample keys alone prove nothing: a model's input does not always have the samples along its
        first dimension. In half precision the rounding tolerance hides a few different samples: there, keys
        count as samples if other steps have the reference's keys.
        """
        if is_half(self.reference) and (step := self._other_keys()) is not None:
            return step
        numeric = {deviation.step for deviation in self.unexplained if deviation.quantity in _BEFORE_UPDATE}
        for step in sorted(numeric):
            if not same_samples(self.run.samples(step), self.reference.samples(step)):
                is_first = self.first is not None and step <= self.first.step
                return step if is_first or self._has_other_count(step) else None
        return None

    def _has_other_count(self, step: int) -> bool:
        """Return whether a step uses more or fewer samples; a difference of values changes no number."""
        known = any(len(set(self.reference.samples(k))) > 1 and self.has_same_samples(k) for k in range(step))
        return known and len(self.run.samples(step)) != len(self.reference.samples(step))

    def _other_keys(self) -> int | None:
        """Return the first step whose keys differ, if another step has several keys and they are equal."""
        last = self.steps if self.first is None else self.first.step + 1
        differing = [step for step in range(self.steps) if not self.has_same_samples(step)]
        is_known = any(
            len(set(self.reference.samples(k))) > 1 for k in range(self.steps) if k not in differing
        )
        off = {
            deviation.step
            for deviation in self.deviations
            if deviation.quantity in _BEFORE_UPDATE and deviation.value > self.reference.facts.epsilon
        }
        return next((step for step in differing if step < last and step in off), None) if is_known else None

    def has_same_samples(self, step: int) -> bool:
        """Return whether a step certainly uses the samples that it uses on one worker."""
        usual = self.reference.samples(step)
        return usual.size > 0 and same_samples(self.run.samples(step), usual)

    def finding(
        self, cause: Cause, message: str, step: int | None = None, *, advice: str = "", **more: Any
    ) -> Finding:
        """Return a finding with the largest deviation of its step, the first one that shows it.

        `advice` is what the author of a distributed script can do, and `more` are further fields.
        """
        if self.run.runs_once and cause != "refused":  # a refusal says itself what to do
            advice = self.fault_of_samestep
        values = [deviation.value for deviation in self.deviations if deviation.step == step]
        return Finding(
            cause=cause,
            message=f"{message} {advice}".rstrip(),
            workers=self.size,
            step=step,
            max_relative_deviation=_finite_maximum(values),
            advice=advice,
            **more,
        )

    @property
    def largest_deviation(self) -> float | None:
        """The largest deviation of all quantities and steps; None if it is not a finite number."""
        return _finite_maximum([deviation.value for deviation in self.deviations])


def _finite_maximum(values: Sequence[float]) -> float | None:
    most = max(values, default=np.inf)
    return most if np.isfinite(most) else None
