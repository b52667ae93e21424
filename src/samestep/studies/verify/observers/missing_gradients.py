"""Notes trainable parameters of optimizers that never get a gradient."""

from collections.abc import Iterator

from torch import Tensor
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks.training_events import parameters_of
from samestep.studies.verify.observers.observer import Observer
from samestep.studies.verify.trace import Note

_LEAST_STEPS = 2
"""Steps that an optimizer makes before its parameters are noted."""


class MissingGradients(Observer):
    """Counts the steps of each optimizer, and of its trainable parameters those without a gradient."""

    def __init__(self) -> None:
        self._optimizers: dict[int, Optimizer] = {}
        self._steps: dict[int, int] = {}
        self._with_gradient: dict[int, Tensor] = {}

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        self._optimizers[id(optimizer)] = optimizer
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`; a closure computes the gradients inside of the step."""
        self._with_gradient |= {id(one): one for one in parameters_of(optimizer) if one.grad is not None}

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        for number, optimizer in self._optimizers.items():
            steps = self._steps[number]
            missing = [
                one
                for one in parameters_of(optimizer)
                if one.requires_grad and id(one) not in self._with_gradient
            ]
            if missing and steps >= _LEAST_STEPS:
                yield Note(
                    "no-gradient",
                    f"{counted(len(missing), 'parameter')} of {type(optimizer).__name__} got no gradient in "
                    f"{counted(steps, 'step')}, the first with shape {tuple(missing[0].shape)}. Use them in "
                    "the loss, or leave them out of the optimizer.",
                )
