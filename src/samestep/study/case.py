"""A run beside its reference: what the causes of a difference are tests of."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from samestep.study.compare import Deviation, deviations, is_half
from samestep.study.seen import Seen, same_samples
from samestep.study.verdict import Finding

_OF_SAMPLES = ("loss", "gradient", "gradient norm")
"""What other samples make differ in their step."""


@dataclass(frozen=True)
class Case:
    """What the causes are tests of.

    Args:
        reference: the run on one worker.
        seen: the run on several.
        control: the reference again, its gradients disturbed by rounding.
    """

    reference: Seen
    seen: Seen
    control: Seen

    @property
    def size(self) -> int:
        """Workers."""
        return self.seen.size

    @cached_property
    def steps(self) -> int:
        """Steps that both made."""
        return min(self.reference.steps, self.seen.steps)

    @cached_property
    def deviations(self) -> Sequence[Deviation]:
        """Of all steps."""
        return deviations(self.reference, self.seen, self.control)

    @cached_property
    def first(self) -> Deviation | None:
        """The first that is more than rounding."""
        return next((one for one in self.deviations if not one.is_rounding), None)

    @cached_property
    def other_samples(self) -> int | None:
        """The step of the first difference, if it computes something else from other samples.

        Other keys alone prove nothing: what is given to a model need not have samples along its first
        dimension. In half precision few other samples are lost in what is taken for rounding: there, keys
        that are those of the reference in other steps are known to be of samples.
        """
        if is_half(self.reference) and (step := self._other_keys()) is not None:
            return step
        numeric = {one.step for one in self.deviations if not one.is_rounding and one.quantity in _OF_SAMPLES}
        for step in sorted(numeric):
            if not same_samples(self.seen.samples(step), self.reference.samples(step)):
                return step if self.first is not None and step <= self.first.step else None
        return None

    def _other_keys(self) -> int | None:
        """Return the first step with other keys than the reference's, if another has the same, several."""
        last = self.steps if self.first is None else self.first.step + 1
        other = [step for step in range(self.steps) if not self.has_same_samples(step)]
        is_known = any(len(set(self.reference.samples(k))) > 1 for k in range(self.steps) if k not in other)
        off = {
            one.step
            for one in self.deviations
            if one.quantity in _OF_SAMPLES and one.value > self.reference.facts.epsilon
        }
        return next((step for step in other if step < last and step in off), None) if is_known else None

    def has_same_samples(self, step: int) -> bool:
        """Whether a step is known to use the samples that it uses on one worker."""
        usual = self.reference.samples(step)
        return usual.size > 0 and same_samples(self.seen.samples(step), usual)

    def finding(self, cause: str, message: str, step: int | None = None) -> Finding:
        """Return a finding of this case, with the largest deviation of its step."""
        values = [one.value for one in self.deviations if one.step == step and np.isfinite(one.value)]
        return Finding(
            cause=cause,
            message=message,
            workers=self.size,
            step=step,
            max_relative_deviation=max(values, default=None),
        )
