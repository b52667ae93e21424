"""Notes gradients that are never zeroed, and gradients that are zeroed before the optimizer uses them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words
from samestep.verify.observers.tensor_state import is_zero, version
from samestep.verify.trace import Note, Place

_LEAST_STEPS = 2  # steps in succession that show it
_Version = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Steps:
    """The gradients of one optimizer, from the end of one step to the end of the next."""

    optimizer: Optimizer
    place: Place | None = None
    after: dict[int, _Version] = field(default_factory=dict)
    """Memory and version of each gradient that the last step left, unless it was zero."""
    is_kept: bool | None = None
    """Whether a backward began with the gradients of the last step; None before a backward."""
    before_backward: dict[int, _Version] = field(default_factory=dict)
    is_reached: bool = False
    """Whether a backward has changed the gradients since the last step."""
    is_live: bool = False
    """Whether the last backward that changed the gradients left one that is not zero."""
    is_thrown_away: bool = False
    """Whether the running step began without these gradients."""
    accumulated: int = 0
    """Number of steps in succession whose gradients include those of the step before."""
    is_accumulating: bool = False
    thrown_away: int = 0
    used: int = 0
    """Numbers of steps without and with the gradients of the backward before."""

    def gradients(self) -> dict[int, Tensor]:
        """Return the gradients by the parameter's id."""
        return {id(one): one.grad for one in parameters_of(self.optimizer) if one.grad is not None}

    def versions(self) -> dict[int, _Version]:
        """Return the memory and version of each gradient; a value cannot change with neither changing."""
        return {number: version(one) for number, one in self.gradients().items()}

    def note_zeros(self) -> None:
        """Record that a gradient of the last step is zero or missing by now."""
        if self.after and self.is_kept is not False:
            found = self.gradients()
            if any(is_zero(found.get(number)) for number in self.after):
                self.is_kept = False


class GradientZeroing(Check):
    """Compares the gradients of each optimizer after a step, before a backward, and before a step."""

    def __init__(self) -> None:
        self._steps: dict[int, _Steps] = {}

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self._steps[id(optimizer)] = _Steps(optimizer)

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        del losses
        for one in self._steps.values():
            one.before_backward = one.versions()
            if one.is_kept is None:
                one.is_kept = all(one.before_backward.get(key) == found for key, found in one.after.items())
            one.note_zeros()

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        for one in self._steps.values():
            if one.versions() != one.before_backward:
                one.is_reached = True
                one.is_thrown_away = False
                one.is_live = not all(is_zero(gradient) for gradient in one.gradients().values())

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        one = self._steps.setdefault(id(optimizer), _Steps(optimizer))
        one.place = current_place()
        one.note_zeros()
        is_empty = all(is_zero(gradient) for gradient in one.gradients().values())
        one.is_thrown_away = one.is_live and is_empty

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`; a closure may have run backwards inside of the step."""
        one = self._steps[id(optimizer)]
        one.thrown_away += one.is_thrown_away
        one.used += not one.is_thrown_away and one.is_reached
        if one.is_reached:
            one.accumulated = one.accumulated + 1 if one.after and one.is_kept else 0
            one.is_accumulating |= one.accumulated >= _LEAST_STEPS
        one.after = {key: version(value) for key, value in one.gradients().items() if not is_zero(value)}
        one.is_kept, one.is_reached, one.is_live = None, False, False

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for one in self._steps.values():
            name = f"{type(one.optimizer).__name__}{in_words(one.place)}"
            if one.is_accumulating:
                yield Note(
                    "gradients-not-zeroed",
                    f"The gradients at the step of {name} include those of the steps before: nothing zeroes "
                    "them. Call zero_grad in each step, before backward or after step.",
                    one.place,
                )
            elif one.thrown_away >= _LEAST_STEPS and not one.used:
                yield Note(
                    "gradients-thrown-away",
                    f"The gradients were zero at {counted(one.thrown_away, 'step')} of {name}, though a "
                    "backward had computed them. Call zero_grad before backward or after step, not "
                    "between them.",
                    one.place,
                )
