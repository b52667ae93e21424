"""Notes optimizers whose parameters get no gradient or never change, and gradients that no optimizer uses."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.studies.verify.observers.check import Call, Check, in_words, note
from samestep.studies.verify.observers.parameter_use import OptimizerUse, ParameterUse
from samestep.studies.verify.trace import Note

_LEAST_UNCHANGED = 5
"""Steps without a change before they are noted; some optimizers update in every second step."""
_LEAST_LOSSES = 2  # backwards from a loss without a graph before they are noted
_NAMED = 3  # parameters that a message names
_Place = tuple[str, int] | None


class GradientCoverage(Check):
    """Compares the parameters of the optimizers with those that the backwards reach."""

    def __init__(self) -> None:
        self._use = ParameterUse()
        self._losses: dict[_Place, list[bool]] = {}
        """Whether each loss had a graph, by the line of the backward."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See `Check.attached`."""
        with self._use.attached():
            yield

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self._use.made(optimizer)

    def called(self, call: Call) -> None:
        """See `Check.called`."""
        self._use.called(call)

    def trained(self, call: Call) -> None:
        """See `Check.trained`."""
        self._use.trained(call)

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        has_graph = any(one.grad_fn is not None for one in losses)
        self._losses.setdefault(current_place(), []).append(has_graph)

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._use.after_backward()

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        self._use.before_step(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`."""
        self._use.after_step(optimizer)

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`; a parameter is in one note only."""
        used = self._use.stepped()
        names = self._use.names()
        left_out = self._left_out() if used else {}
        for use in used:
            missing = self._use.without_gradient(use, names)
            unknown = [one for one in missing if id(one) not in names]
            model = next(
                (one for one, found in left_out.items() if self._replaces(one, found, unknown)), None
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
        found: dict[nn.Module, Sequence[Tensor]] = {}
        for model in (*self._use.models.values(), *self._use.unregistered()):
            new = [one for one in model.parameters() if id(one) not in seen and self._use.is_left_out(one)]
            seen |= {id(one) for one in new}
            if new:
                found[model] = new
        return found

    def _replaces(self, model: nn.Module, left_out: Sequence[Tensor], missing: Sequence[Tensor]) -> bool:
        """Return whether parameters of a model take the place of an optimizer's that no called model has."""
        if len(left_out) != len(missing):
            return False
        if Counter(one.shape for one in left_out) == Counter(one.shape for one in missing):
            return True
        is_part = any(self._use.is_held(one) for one in model.parameters())
        return is_part and [one.ndim for one in left_out] == [one.ndim for one in missing]

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
            return note(
                "loss-without-graph",
                f"backward{in_words(place)} starts from a loss without a graph, so {use.name} gets no "
                "gradient. Compute the loss by operations on the model's outputs, without detach, item, "
                "torch.tensor or numpy in between.",
                place,
            )
        return note(
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
        unregistered = set(self._use.unregistered())
        for model, found in left_out.items():
            held = [one for one in model.parameters() if self._use.is_held(one)]
            is_list = model in unregistered
            if len(found) >= len(held) and not is_list:
                continue
            use = self._holder(held)
            hidden = (
                f" of a {type(model).__name__} that is not registered in its model (a Python list? use "
                "nn.ModuleList)"
                if is_list
                else f" ({_named(found, names)})"
            )
            yield note(
                "no-optimizer",
                f"{counted(len(found), 'parameter')}{hidden} get a gradient, and are in no optimizer"
                f"{in_words(use.place)}. Add them to it, or freeze them by requires_grad_(False).",
                use.place,
            )

    def _holder(self, parameters: Sequence[Tensor]) -> OptimizerUse:
        """Return the optimizer that holds most of these parameters."""
        wanted = {id(one) for one in parameters}
        return max(
            self._use.stepped(),
            key=lambda use: len(wanted & {id(one) for one in parameters_of(use.optimizer)}),
        )


def _holds_other(use: OptimizerUse, missing: Sequence[Tensor], model: nn.Module, names: str) -> Note:
    return note(
        "optimizer-holds-other",
        f"{use.name}{in_words(use.place)} holds {counted(len(missing), 'parameter')} that no called model "
        f"has, and the called {type(model).__name__} has as many that no optimizer holds: {names}. Make the "
        "optimizer after the model is copied, replaced or changed.",
        use.place,
    )


def _unchanged(use: OptimizerUse) -> Note:
    rates = sorted({float(group["lr"]) for group in use.optimizer.param_groups if "lr" in group})
    found = ", ".join(f"{one:g}" for one in rates)
    return note(
        "no-change",
        f"{use.name}{in_words(use.place)} changed no parameter in {counted(use.without_change, 'step')}, "
        f"though they have gradients; its last learning rate is {found or 'unknown'}. Raise it, or use a "
        "dtype in which such an update is not rounded away.",
        use.place,
    )


def _named(parameters: Sequence[Tensor], names: dict[int, str]) -> str:
    shown = [names.get(id(one)) or f"one of shape {tuple(one.shape)}" for one in parameters[:_NAMED]]
    return ", ".join(shown) + (", ..." if len(parameters) > _NAMED else "")
