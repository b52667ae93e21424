"""Notes optimizers whose parameters get no gradient or never change, and gradients that no optimizer uses.

Also noted are optimizers that update their parameters in the first steps, and in none of many later ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Call, Check, checksum, in_words, is_zero, magnitude, overflows
from samestep.verify.probe import plain_name
from samestep.verify.trace import Note, Place

_LEAST_STEPS = 2  # steps or backwards before anything is noted: the first may be special
_LEAST_UNCHANGED = 5
"""Steps without a change before they are noted; some optimizers update in every second step. A guess."""
_LEAST_LOSSES = 2  # backwards from a loss without a graph before they are noted: the first may be special
_PADDING = 16  # elements by which a wrapper may pad a flat parameter on one worker: a guess
_NAMED = 3  # parameters that a message names


@dataclass(slots=True, eq=False)
class OptimizerUse:
    """The steps of one optimizer."""

    optimizer: Optimizer  # the optimizer
    place: Place | None = None  # where it was made
    steps: int = 0  # number of its steps that began
    # number of steps with a gradient after which all parameters were as before the first
    without_change: int = 0
    has_changed: bool = False  # whether a step has changed a parameter
    before: list[int] = field(default_factory=list)  # checksums of the parameters before the step that runs

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return type(self.optimizer).__name__

    def trainable(self) -> list[Tensor]:
        """Return its trainable parameters."""
        return [parameter for parameter in parameters_of(self.optimizer) if parameter.requires_grad]


@dataclass(slots=True, eq=False)
class UnheldParameter:
    """A parameter of a called model that no optimizer holds."""

    value: int  # checksum when it was first seen with a gradient
    backwards: int = 0  # number of backwards after which it had a gradient


class ParameterUse(Check):
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

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {declarations.PART_CALL: wrapping(self._call_part)}

    def _call_part(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and module._parameters and module.training:  # noqa: SLF001
            self._parts.add(module)
        return original(module, *args, **kwargs)

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self.optimizers[id(optimizer)] = OptimizerUse(optimizer, current_place())
        self._held |= {id(parameter) for parameter in parameters_of(optimizer)}

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """See `Check.called`."""
        del inputs
        self._called.add(call.module)

    def trained(self, call: Call) -> None:
        """See `Check.trained`."""
        if call.is_training:
            self.models[id(call.module)] = call.module

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._note_gradients()
        for parameter in self._of_models():
            number = id(parameter)
            if number not in self._held and parameter.requires_grad and parameter.grad is not None:
                if number not in self.unheld:
                    self.unheld[number] = UnheldParameter(checksum(parameter))
                self.unheld[number].backwards += 1

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        use = self.optimizers.setdefault(id(optimizer), OptimizerUse(optimizer))
        use.steps += 1
        self._held |= {id(parameter) for parameter in parameters_of(optimizer)}
        self._note_gradients()
        if not use.has_changed:
            use.before = [checksum(parameter) for parameter in parameters_of(optimizer)]

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`; a closure computes the gradients inside of the step."""
        self._note_gradients()
        use = self.optimizers[id(optimizer)]
        if not use.has_changed:
            after = [checksum(parameter) for parameter in parameters_of(optimizer)]
            use.has_changed = after != use.before
            if not overflows(optimizer):
                use.without_change += not all(
                    is_zero(parameter.grad) for parameter in parameters_of(optimizer)
                )

    def _note_gradients(self) -> None:
        for use in self.optimizers.values():
            self._with_gradient |= {
                id(parameter) for parameter in parameters_of(use.optimizer) if parameter.grad is not None
            }

    def stepped(self) -> list[OptimizerUse]:
        """Return the optimizers that have stepped at least twice."""
        return [use for use in self.optimizers.values() if use.steps >= _LEAST_STEPS]

    def without_gradient(self, use: OptimizerUse, names: Mapping[int, str]) -> list[Tensor]:
        """Return the trainable parameters of an optimizer that never had a gradient.

        One is skipped if its like in another item of a `ModuleList` had one: an expert may get no sample.
        """
        items = {_item_of(name) for number, name in names.items() if number in self._with_gradient} - {None}
        return [
            parameter
            for parameter in use.trainable()
            if id(parameter) not in self._with_gradient
            and _item_of(names.get(id(parameter), "")) not in items
        ]

    def is_held(self, parameter: Tensor) -> bool:
        """Return whether an optimizer has held a parameter."""
        return id(parameter) in self._held

    def is_left_out(self, parameter: Tensor) -> bool:
        """Return whether a parameter gets gradients that neither an optimizer nor another update uses."""
        unheld = self.unheld.get(id(parameter))
        return (
            unheld is not None
            and not self.is_held(parameter)
            and unheld.backwards >= _LEAST_STEPS
            and parameter.requires_grad
            and unheld.value == checksum(parameter)
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
                names.setdefault(id(parameter), plain_name(name))
        return names

    def _of_models(self) -> Iterator[Tensor]:
        for model in (*self.models.values(), *self.unregistered()):
            yield from model.parameters()


class GradientCoverage(ParameterUse):
    """Compares the parameters of the optimizers with those that the backwards reach."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: dict[Place | None, list[bool]] = {}
        """Whether each loss had a graph, by the line of the backward."""

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        has_graph = any(loss.grad_fn is not None for loss in losses)
        self._losses.setdefault(current_place(), []).append(has_graph)

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`; a parameter is in one note only."""
        used = self.stepped()
        names = self.names()
        left_out = self._left_out() if used else {}
        for use in used:
            missing = self.without_gradient(use, names)
            unknown = [parameter for parameter in missing if id(parameter) not in names]
            model = next(
                (
                    model
                    for model, parameters in left_out.items()
                    if self._replaces(model, parameters, unknown)
                ),
                None,
            )
            if model is not None:
                yield _holds_other(use, unknown, model, _named(left_out.pop(model), names))
            elif missing:
                yield self._without_gradient(use, missing, names)
            elif use.without_change >= _LEAST_UNCHANGED and not use.has_changed:
                yield _unchanged(use)
        yield from self._without_optimizer(left_out, names)

    def _left_out(self) -> dict[nn.Module, Sequence[Tensor]]:
        """Return the parameters that get a gradient and are in no optimizer, each for one model."""
        seen: set[int] = set()
        left_out: dict[nn.Module, Sequence[Tensor]] = {}
        for model in (*self.models.values(), *self.unregistered()):
            new = [
                parameter
                for parameter in model.parameters()
                if id(parameter) not in seen and self.is_left_out(parameter)
            ]
            seen |= {id(parameter) for parameter in new}
            if new:
                left_out[model] = new
        return left_out

    def _replaces(self, model: nn.Module, left_out: Sequence[Tensor], missing: Sequence[Tensor]) -> bool:
        """Return whether parameters of a model take the place of an optimizer's that no called model has."""
        if _flatten(left_out, missing):
            return True
        if len(left_out) != len(missing):
            return False
        shapes, missing_shapes = ([parameter.shape for parameter in some] for some in (left_out, missing))
        if Counter(shapes) == Counter(missing_shapes):
            return True
        is_part = any(self.is_held(parameter) for parameter in model.parameters())
        return is_part and list(map(len, shapes)) == list(map(len, missing_shapes))

    def _without_gradient(self, use: OptimizerUse, missing: Sequence[Tensor], names: dict[int, str]) -> Note:
        place = next(
            (
                place
                for place, graphs in self._losses.items()
                if len(graphs) >= _LEAST_LOSSES and not any(graphs)
            ),
            None,
        )
        if place is not None and len(missing) == len(use.trainable()):
            return Note(
                "loss-without-graph",
                f"backward{in_words(place)} starts from a loss without a graph, so {use.name} gets no "
                "gradient. Compute the loss by operations on the model's outputs, without detach, item, "
                "torch.tensor or numpy in between.",
                place,
            )
        return Note(
            "no-gradient",
            f"{counted(len(missing), 'parameter')} of {use.name}{in_words(use.place)} got no gradient in "
            f"{counted(use.steps, 'step')}: {_named(missing, names)}. Use them in the loss, or leave them "
            "out of the optimizer.",
            use.place,
        )

    def _without_optimizer(
        self, left_out: dict[nn.Module, Sequence[Tensor]], names: dict[int, str]
    ) -> Iterator[Note]:
        """Note the smaller part of a model; who trains a head alone leaves out the larger part on purpose."""
        unregistered = set(self.unregistered())
        for model, parameters in left_out.items():
            held = [parameter for parameter in model.parameters() if self.is_held(parameter)]
            is_list = model in unregistered
            if len(parameters) >= len(held) and not is_list:
                continue
            use = self._holder(held)
            hidden = (
                f" of a {type(model).__name__} that is not registered in its model (a Python list? use "
                "nn.ModuleList)"
                if is_list
                else f" ({_named(parameters, names)})"
            )
            yield Note(
                "no-optimizer",
                f"{counted(len(parameters), 'parameter')}{hidden} get a gradient, and are in no optimizer"
                f"{in_words(use.place)}. Add them to it, or freeze them by requires_grad_(False).",
                use.place,
            )

    def _holder(self, parameters: Sequence[Tensor]) -> OptimizerUse:
        """Return the optimizer that holds most of these parameters."""
        wanted = {id(parameter) for parameter in parameters}
        return max(
            self.stepped(),
            key=lambda use: len(wanted & {id(parameter) for parameter in parameters_of(use.optimizer)}),
        )


def _flatten(left_out: Sequence[Tensor], missing: Sequence[Tensor]) -> bool:
    """Return whether flat parameters have the elements of an optimizer's, as those that FSDP makes."""
    elements, missing_elements = (
        sum(parameter.numel() for parameter in some) for some in (left_out, missing)
    )
    is_flat = all(parameter.dim() == 1 for parameter in left_out) and any(
        parameter.dim() > 1 for parameter in missing
    )
    return is_flat and missing_elements <= elements <= missing_elements + _PADDING * len(left_out)


def _holds_other(use: OptimizerUse, missing: Sequence[Tensor], model: nn.Module, names: str) -> Note:
    return Note(
        "optimizer-holds-other",
        f"{use.name}{in_words(use.place)} holds {counted(len(missing), 'parameter')} that no called model "
        f"has, and the called {type(model).__name__} has parameters in their place that no optimizer holds: "
        f"{names}. Make the optimizer after the model is copied, replaced, wrapped or changed.",
        use.place,
    )


def _unchanged(use: OptimizerUse) -> Note:
    rates = sorted({float(lr) for group in use.optimizer.param_groups if (lr := group.get("lr")) is not None})
    shown = ", ".join(f"{rate:g}" for rate in rates)
    return Note(
        "no-change",
        f"{use.name}{in_words(use.place)} changed no parameter in {counted(use.without_change, 'step')}, "
        f"though they have gradients; its last learning rate is {shown or 'unknown'}. Raise it, or use a "
        "dtype in which such an update is not rounded away.",
        use.place,
    )


def _named(parameters: Sequence[Tensor], names: dict[int, str]) -> str:
    shown = [
        names.get(id(parameter)) or f"one of shape {tuple(parameter.shape)}"
        for parameter in parameters[:_NAMED]
    ]
    return ", ".join(shown) + (", ..." if len(parameters) > _NAMED else "")


def _item_of(name: str) -> str | None:
    """Return the name of a parameter without its numbers; None for a name without any."""
    pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
    return None if pattern == name else pattern


_LEAST_STOPPED = 10  # steps without an update, at the end of a run, that are noted: a guess
_LEAST_STOPPED_FRACTION = (
    0.5  # fraction of all steps that these are: a schedule, or a phase, is shorter. A guess.
)
_ROUNDINGS_OF_STOPPED = 4.0
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
        return not overflows(self.optimizer) and any(
            float(group.get("lr") or 0.0) * magnitude(parameter.grad) > _smallest_update(parameter)
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.dtype.is_floating_point
        )


def _smallest_update(parameter: Tensor) -> float:
    """Return an update that changes some value of a parameter for certain."""
    numbers = torch.finfo(parameter.dtype)
    return max(_ROUNDINGS_OF_STOPPED * numbers.eps * magnitude(parameter), numbers.smallest_normal)


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
            is_long = updates.without >= max(_LEAST_STOPPED, _LEAST_STOPPED_FRACTION * updates.steps)
            if updates.has_changed and is_long and not updates.has_closure:
                yield Note(
                    "updates-stop",
                    f"{type(updates.optimizer).__name__}{in_words(updates.place)} has changed no parameter "
                    f"in the last {counted(updates.without, 'step')} of {updates.steps}, though they have "
                    "gradients and a learning rate. A compiled or recorded step may be used that was made "
                    "while there were no gradients.",
                    updates.place,
                )
