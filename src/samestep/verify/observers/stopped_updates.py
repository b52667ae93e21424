"""Notes optimizers that update their parameters in the first steps, and in none of many later ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, checksum, in_words, is_zero, magnitude
from samestep.verify.trace import Note, Place

_LEAST_STEPS = 10  # steps without an update, at the end of a run, that are noted: a guess
_LEAST_FRACTION = 0.5  # fraction of all steps that these are: a schedule, or a phase, is shorter. A guess.
_ROUNDINGS = 4.0
"""The learning rate times the largest gradient, in units of the rounding of the largest parameter, from which
an update changes some parameter."""


@dataclass(slots=True, eq=False)
class _Updates:
    """The steps of one optimizer."""

    optimizer: Optimizer
    place: Place | None = None  # where it was made
    steps: int = 0
    has_changed: bool = False  # whether a step has changed a parameter
    without: int = 0  # number of steps since that changed none, though they have gradients
    has_closure: bool = False  # whether a backward ran inside of a step, which a converged optimizer leaves
    sentinel: int | None = 0
    """Number of the parameter whose changes are watched; None if all are, because it has not changed."""
    before: list[int] = field(default_factory=list)  # checksums of the watched parameters before the step

    def watched(self) -> Sequence[Tensor]:
        """Return the parameters that are compared in this step."""
        parameters = parameters_of(self.optimizer)
        return parameters if self.sentinel is None else parameters[self.sentinel : self.sentinel + 1]

    def must_change(self) -> bool:
        """Return whether the gradients are so large that a step changes a parameter."""
        overflow = getattr(self.optimizer, "found_inf", None)  # a fused optimizer skips steps itself
        if overflow is not None and not is_zero(overflow):
            return False
        return any(
            float(group.get("lr", 0.0)) * magnitude(parameter.grad) > _smallest_update(parameter)
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.dtype.is_floating_point
        )


def _smallest_update(parameter: Tensor) -> float:
    """Return an update that changes some value of a parameter for certain."""
    numbers = torch.finfo(parameter.dtype)
    return max(_ROUNDINGS * numbers.eps * magnitude(parameter), numbers.smallest_normal)


class UpdatesStop(Check):
    """Compares the parameters of each optimizer before and after each step.

    One parameter is compared until it does not change in a step, then all of them: checksums take time.
    """

    def __init__(self) -> None:
        self._optimizers: dict[int, _Updates] = {}
        self._stepping: _Updates | None = None

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self._optimizers[id(optimizer)] = _Updates(optimizer, current_place())

    def before_backward(self, losses: Sequence[Any]) -> None:
        """See `Check.before_backward`."""
        del losses
        if self._stepping is not None:
            self._stepping.has_closure = True

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        updates = self._optimizers.setdefault(id(optimizer), _Updates(optimizer))
        self._stepping = updates
        updates.steps += 1
        if not updates.has_closure:
            updates.before = [checksum(parameter) for parameter in updates.watched()]

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`."""
        updates, self._stepping = self._optimizers[id(optimizer)], None
        if updates.has_closure:
            return
        after = [checksum(parameter) for parameter in updates.watched()]
        changed = [
            number for number, pair in enumerate(zip(updates.before, after, strict=False)) if len({*pair}) > 1
        ]
        if changed:
            updates.has_changed, updates.without = True, 0
            updates.sentinel = changed[0] if updates.sentinel is None else updates.sentinel
        elif updates.sentinel is not None:
            updates.sentinel = None
        else:
            updates.without = updates.without + 1 if updates.must_change() else 0

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for updates in self._optimizers.values():
            is_long = updates.without >= max(_LEAST_STEPS, _LEAST_FRACTION * updates.steps)
            if updates.has_changed and is_long and not updates.has_closure:
                yield Note(
                    "updates-stop",
                    f"{type(updates.optimizer).__name__}{in_words(updates.place)} has changed no parameter "
                    f"in the last {counted(updates.without, 'step')} of {updates.steps}, though they have "
                    "gradients and a learning rate. A compiled or recorded step may be used that was made "
                    "while there were no gradients.",
                    updates.place,
                )
