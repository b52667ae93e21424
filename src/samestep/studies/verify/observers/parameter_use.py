"""Records which parameters the optimizers hold, the called models have, and the backwards reach."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from samestep.hooks import verify_declarations
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.studies.verify.observers.check import Call
from samestep.studies.verify.observers.tensor_state import checksum, is_zero

_WRAPPERS = ("module", "_orig_mod")  # prefixes that wrappers add to the names of a model's parameters


@dataclass(slots=True, eq=False)
class OptimizerUse:
    """The steps of one optimizer.

    Attributes:
        optimizer: the optimizer.
        place: where it was made.
        steps: number of its steps that began.
        without_change: number of steps with a gradient after which all parameters were as before the first.
        has_changed: whether a step has changed a parameter.
    """

    optimizer: Optimizer
    place: tuple[str, int] | None = None
    steps: int = 0
    without_change: int = 0
    has_changed: bool = False
    before: list[int] = field(default_factory=list)  # checksums of the parameters before the step that runs

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return type(self.optimizer).__name__

    def trainable(self) -> list[Tensor]:
        """Return its trainable parameters."""
        return [one for one in parameters_of(self.optimizer) if one.requires_grad]


@dataclass(slots=True, eq=False)
class UnheldParameter:
    """A parameter of a called model that no optimizer holds.

    Attributes:
        value: checksum when it was first seen with a gradient.
        backwards: number of backwards after which it had a gradient.
    """

    value: int
    backwards: int = 0


class ParameterUse:
    """Records optimizers, models and gradients; it keeps optimizers and models, as the probe does."""

    def __init__(self) -> None:
        self.optimizers: dict[int, OptimizerUse] = {}
        self.models: dict[int, nn.Module] = {}  # models that a gradient went through, by id
        self.unheld: dict[int, UnheldParameter] = {}
        self._with_gradient: set[int] = set()
        self._held: set[int] = set()
        self._parts: WeakSet[nn.Module] = WeakSet()
        """Modules with parameters of their own that were called inside of training calls."""
        self._called: WeakSet[nn.Module] = WeakSet()  # modules of all top-level calls

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record the layers that are called, for the duration of a block."""
        with attached(verify_declarations.PART_CALL, wrapping(self._call_part)):
            yield

    def _call_part(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and module._parameters and module.training:  # noqa: SLF001
            self._parts.add(module)
        return original(module, *args, **kwargs)

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self.optimizers[id(optimizer)] = OptimizerUse(optimizer, current_place())
        self._held |= {id(one) for one in parameters_of(optimizer)}

    def called(self, call: Call) -> None:
        """See `Check.called`."""
        self._called.add(call.module)

    def trained(self, call: Call) -> None:
        """See `Check.trained`."""
        if call.is_training:
            self.models[id(call.module)] = call.module

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._note_gradients()
        for _, parameter in self._of_models():
            number = id(parameter)
            if number not in self._held and parameter.requires_grad and parameter.grad is not None:
                if number not in self.unheld:
                    self.unheld[number] = UnheldParameter(checksum(parameter))
                self.unheld[number].backwards += 1

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        use = self.optimizers.setdefault(id(optimizer), OptimizerUse(optimizer))
        use.steps += 1
        self._held |= {id(one) for one in parameters_of(optimizer)}
        self._note_gradients()
        if not use.has_changed:
            use.before = [checksum(one) for one in parameters_of(optimizer)]

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`; a closure computes the gradients inside of the step."""
        self._note_gradients()
        use = self.optimizers[id(optimizer)]
        if not use.has_changed:
            after = [checksum(one) for one in parameters_of(optimizer)]
            use.has_changed = after != use.before
            skipped = getattr(optimizer, "found_inf", None)  # a fused optimizer skips steps itself
            if skipped is None or is_zero(skipped):
                use.without_change += not all(is_zero(one.grad) for one in parameters_of(optimizer))

    def _note_gradients(self) -> None:
        for use in self.optimizers.values():
            self._with_gradient |= {id(one) for one in parameters_of(use.optimizer) if one.grad is not None}

    def stepped(self) -> list[OptimizerUse]:
        """Return the optimizers that have stepped at least twice."""
        return [use for use in self.optimizers.values() if use.steps >= _LEAST_STEPS]

    def without_gradient(self, use: OptimizerUse, names: Mapping[int, str]) -> list[Tensor]:
        """Return the trainable parameters of an optimizer that never had a gradient.

        One is skipped if its like in another item of a `ModuleList` had one: an expert may get no sample.
        """
        items = {_item_of(name) for number, name in names.items() if number in self._with_gradient} - {None}
        return [
            one
            for one in use.trainable()
            if id(one) not in self._with_gradient and _item_of(names.get(id(one), "")) not in items
        ]

    def is_held(self, parameter: Tensor) -> bool:
        """Return whether an optimizer has held a parameter."""
        return id(parameter) in self._held

    def is_left_out(self, parameter: Tensor) -> bool:
        """Return whether a parameter gets gradients that neither an optimizer nor another update uses."""
        found = self.unheld.get(id(parameter))
        return (
            found is not None
            and not self.is_held(parameter)
            and found.backwards >= _LEAST_STEPS
            and parameter.requires_grad
            and found.value == checksum(parameter)
        )

    def unregistered(self) -> list[nn.Module]:
        """Return called modules that are no part of a called model, as those in a Python list."""
        registered = {id(part) for model in self._called for part in model.modules()}
        return [part for part in self._parts if id(part) not in registered]

    def names(self) -> dict[int, str]:
        """Return the names of the parameters that a called model has."""
        names: dict[int, str] = {}
        for model in self.models.values():
            for name, parameter in model.named_parameters():
                parts = [part for part in name.split(".") if part not in _WRAPPERS]
                names.setdefault(id(parameter), ".".join(parts))
        return names

    def _of_models(self) -> Iterator[tuple[nn.Module, Tensor]]:
        for model in (*self.models.values(), *self.unregistered()):
            for parameter in model.parameters():
                yield model, parameter


_LEAST_STEPS = 2  # steps or backwards before anything is noted


def _item_of(name: str) -> str | None:
    """Return the name of a parameter without its numbers; None for a name without any."""
    pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
    return None if pattern == name else pattern
