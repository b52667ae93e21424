"""A run on several workers, compared with the run on one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from samestep.studies.verify.compare import Deviation, deviations, is_half
from samestep.studies.verify.run_record import RunRecord, same_samples
from samestep.studies.verify.verdict import Cause, Finding

_BEFORE_UPDATE = ("loss", "gradient", "gradient norm")
"""Quantities of a step that are known before its update; other samples change them."""

FAULT_OF_SAMESTEP = (
    "The script is serial, so this is a fault of samestep and not of the script: train it on one worker, and "
    "report it."
)


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

    @cached_property
    def steps(self) -> int:
        """Number of steps that both runs have."""
        return min(self.reference.steps, self.run.steps)

    @cached_property
    def deviations(self) -> Sequence[Deviation]:
        """Deviations of all steps."""
        found, last = deviations(self.reference, self.run, self.control), self.other_rates
        if last is None:
            return found
        return [
            one for one in found if one.step < last or (one.step == last and one.quantity in _BEFORE_UPDATE)
        ]

    @cached_property
    def first(self) -> Deviation | None:
        """The first deviation that rounding does not explain."""
        return self.first_of(None)

    @cached_property
    def first_epoch(self) -> int:
        """Number of steps before a sample repeats in either run."""
        return min(self.reference.first_epoch(), self.run.first_epoch())

    def until_samples_differ(self, found: Sequence[Finding]) -> "Comparison":
        """Return the comparison of the steps before the first with other samples."""
        if not found:
            return self
        step = min(self.first_epoch if one.step is None else one.step for one in found)
        records = (one.until(step) for one in (self.reference, self.run, self.control))
        return Comparison(*records)

    def until_rates_differ(self, step: int) -> "Comparison":
        """Return the comparison of what comes before the update of the first step with another rate."""
        return replace(self, other_rates=step)

    def first_of(self, quantity: str | None) -> Deviation | None:
        """Return the first deviation of a quantity, or of any, that rounding does not explain."""
        found = (one for one in self.deviations if quantity in (None, one.quantity) and not one.is_rounding)
        return next(found, None)

    @cached_property
    def other_samples(self) -> int | None:
        """The step of the first difference, if that step computes a different result from different samples.

        Different sample keys alone prove nothing: a model's input does not always have the samples along its
        first dimension. In half precision the rounding tolerance hides a few different samples: there, keys
        count as samples if other steps have the reference's keys.
        """
        if is_half(self.reference) and (step := self._other_keys()) is not None:
            return step
        numeric = {
            one.step for one in self.deviations if not one.is_rounding and one.quantity in _BEFORE_UPDATE
        }
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
        other = [step for step in range(self.steps) if not self.has_same_samples(step)]
        is_known = any(len(set(self.reference.samples(k))) > 1 for k in range(self.steps) if k not in other)
        off = {
            one.step
            for one in self.deviations
            if one.quantity in _BEFORE_UPDATE and one.value > self.reference.facts.epsilon
        }
        return next((step for step in other if step < last and step in off), None) if is_known else None

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
        if self.run.is_replicated and cause != "refused":  # a refusal says itself what to do
            advice = FAULT_OF_SAMESTEP
        values = [one.value for one in self.deviations if one.step == step and np.isfinite(one.value)]
        return Finding(
            cause=cause,
            message=f"{message} {advice}".rstrip(),
            workers=self.size,
            step=step,
            max_relative_deviation=max(values, default=None),
            advice=advice,
            **more,
        )

    @property
    def largest_deviation(self) -> float | None:
        """The largest deviation of all quantities and steps; None if none is a finite number."""
        return max((one.value for one in self.deviations if np.isfinite(one.value)), default=None)
