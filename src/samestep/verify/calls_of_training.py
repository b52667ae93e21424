"""Finds calls without gradients that belong to the training: rollouts, teachers and target networks."""

from collections.abc import Callable, Iterable, Sequence
from weakref import ref

from torch import nn

from samestep.verify.tensor_summary import sketch
from samestep.verify.trace import Step


class CallsOfTraining:
    """Separates the calls without gradients of one rank that are no evaluations.

    In a rollout, a model in training mode is called on samples that it is trained on afterwards and was not
    trained on before; or it is called before every step, as where it chooses an action. A teacher and a
    target network are never trained, and called before every step in any mode.

    Args:
        is_trained: returns whether a model has parameters of one that was trained so far.
    """

    def __init__(self, is_trained: Callable[[nn.Module], bool]) -> None:
        self._is_trained = is_trained
        self._at_first: dict[ref[nn.Module], list[float]] = {}
        """Sketches of the parameters of models at their first call, if they were not trained before."""
        self._trained_on: set[float] = set()  # keys of the samples of earlier steps
        self._since_step: dict[tuple[nn.Module, bool], list[float]] = {}
        """Keys of the samples since the last step, by model and if it was in training mode."""
        self._always: set[int] | None = None
        """Ids of the models with such calls before every step so far; None before the first step."""

    def add(self, model: nn.Module, keys: Sequence[float]) -> None:
        """Add the samples of a call without gradients."""
        self._since_step.setdefault((model, model.training), []).extend(keys)
        if ref(model) not in self._at_first and not self._is_trained(model):
            self._at_first[ref(model)] = sketch(one for one in model.parameters() if not one.is_meta)

    def of_untrained_models(self) -> list[float]:
        """Return sketches of the parameters of all models that are never trained, at their first call."""
        found: list[float] = []
        for weak, numbers in self._at_first.items():
            model = weak()
            if model is None or not self._is_trained(model):  # trained ones are kept alive
                found += numbers
        return found

    def remove_from(self, step: Step) -> None:
        """Remove these calls from the evaluations before a step that has all samples since the last one."""
        calls, self._since_step = self._since_step, {}
        trained = {id(model) for model, _ in calls if self._is_trained(model)}
        own = [
            (id(model), keys)
            for (model, is_training), keys in calls.items()
            if is_training or id(model) not in trained
        ]
        called = {model for model, _ in own}
        self._always = called if self._always is None else self._always & called
        removed = _rounded(key for model, keys in own if model in self._always for key in keys)
        played = _rounded(key for (_, is_training), keys in calls.items() if is_training for key in keys)
        used = _rounded(step.samples)
        is_new = 2 * len(played - self._trained_on) > len(played)
        if is_new and used and 2 * len(used & played) >= len(used):
            step.has_rollout, removed = True, removed | played
        step.has_rollout |= bool(self._always & trained)
        step.evaluated = [key for key in step.evaluated if round(key, 9) not in removed]
        self._trained_on |= used


def _rounded(keys: Iterable[float]) -> set[float]:
    return {round(key, 9) for key in keys}
