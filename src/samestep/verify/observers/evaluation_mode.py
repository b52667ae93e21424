"""Notes models that train in evaluation mode after an evaluation, or are evaluated in training mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as Dropout
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Call, Check, in_words
from samestep.verify.trace import Note, Place


@dataclass(slots=True, eq=False)
class _Mode:
    """The calls of one model."""

    set_at: int = 0  # number of calls when its mode was last set
    place: Place | None = None  # the line that set it
    waiting: set[int] = field(default_factory=set)  # calls in evaluation mode that no gradient has reached
    last_evaluation: int = 0  # number of the last such call before the last step
    has_trained: bool = False  # whether it was trained in training mode
    trains: bool = False  # whether it was since the last step
    trains_in_evaluation: bool = False  # whether it was trained in evaluation mode since the last step
    steps: int = 0  # number of such steps since the last evaluation


class EvaluationModeKept(Check):
    """Finds training steps in evaluation mode after an evaluation, where training mode came before."""

    def __init__(self) -> None:
        self._modes: WeakKeyDictionary[nn.Module, _Mode] = WeakKeyDictionary()
        self._calls = 0

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {declarations.MODE_SET: wrapping(self._set_mode)}

    def _set_mode(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module in self._modes:
            self._modes[module].set_at, self._modes[module].place = self._calls, current_place()
        return original(module, *args, **kwargs)

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """See `Check.called`."""
        del inputs
        self._calls = call.number
        mode = self._modes.setdefault(call.module, _Mode())
        if not call.is_training:
            mode.waiting.add(call.number)

    def trained(self, call: Call) -> None:
        """See `Check.trained`."""
        mode = self._modes[call.module]
        mode.waiting.discard(call.number)
        mode.trains |= call.is_training
        mode.trains_in_evaluation |= not call.is_training

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        for mode in self._modes.values():
            mode.last_evaluation = max((mode.last_evaluation, *mode.waiting))
            if mode.trains:
                mode.has_trained, mode.steps = True, 0
            elif mode.trains_in_evaluation and mode.has_trained and mode.last_evaluation > mode.set_at:
                mode.steps += 1
            mode.waiting.clear()
            mode.trains = mode.trains_in_evaluation = False

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for module, mode in self._modes.items():
            if mode.steps and any(map(_depends_on_mode, module.modules())):
                yield Note(
                    "eval-not-undone",
                    f"{type(module).__name__} trained in evaluation mode in the last "
                    f"{counted(mode.steps, 'step')}: eval(){in_words(mode.place)} was not undone after the "
                    "evaluation. Call train() before training goes on.",
                    mode.place,
                )


class TrainingModeInEvaluation(Check):
    """Finds evaluations in training mode: without gradients, on data that no training call used.

    Several calls with one batch are an estimate of uncertainty (dropout stays on). With several optimizers,
    networks train each other and their modes are a choice.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._source = 0  # id of the data set of the last batch
        self._since_training: dict[int, int] = {}
        """Number of batches of each data set since the last training call."""
        self._used: set[int] = set()  # data sets of training
        self._evaluated: dict[tuple[int, int], tuple[Place | None, str]] = {}
        """Line and model of the first evaluation in training mode, by the ids of model and data set."""
        self._last: dict[int, int] = {}  # the batch that each model was last evaluated with
        self._repeated: set[int] = set()
        self._trained: set[int] = set()
        self._optimizers: set[int] = set()

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {declarations.BATCH_SOURCE: wrapping(self._next)}

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        batch = original(iterator)
        self._batches += 1
        self._source = id(getattr(iterator, "_dataset", None))
        self._since_training[self._source] = self._since_training.get(self._source, 0) + 1
        return batch

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """See `Check.called`."""
        del inputs
        if call.has_grad or not call.is_training or not self._source or not _is_random_or_batch(call.module):
            return
        model = id(call.module)
        if self._last.get(model) == self._batches:
            self._repeated.add(model)
        self._last[model] = self._batches
        self._evaluated.setdefault((model, self._source), (current_place(), type(call.module).__name__))

    def trained(self, call: Call) -> None:
        """See `Check.trained`; a step may use batches of several loaders."""
        self._trained.add(id(call.module))
        self._used |= {self._source, *(key for key, count in self._since_training.items() if count == 1)}
        self._since_training.clear()

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        self._optimizers.add(id(optimizer))

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        if len(self._optimizers) > 1:
            return
        for (model, source), (place, name) in self._evaluated.items():
            if model in self._trained - self._repeated and source not in self._used:
                yield Note(
                    "train-mode-in-evaluation",
                    f"{name} is evaluated{in_words(place)} in training mode: its dropout or batch norm "
                    "depends on chance or on the other samples of the batch. Call eval() before, and "
                    "train() after.",
                    place,
                )


def _is_random_or_batch(module: nn.Module) -> bool:
    """Return whether dropout or batch norm are active; a momentum of None computes new statistics."""
    return any(
        (isinstance(part, Dropout) and part.p > 0)
        or (isinstance(part, BatchNorm) and part.momentum is not None)
        for part in module.modules()
        if part.training
    )


def _depends_on_mode(part: nn.Module) -> bool:
    """Return whether a part computes something else in training; every RNN of torch reads its mode."""
    if isinstance(part, Dropout):
        return part.p > 0
    if type(part).__module__.startswith("torch."):
        dropout = getattr(part, "dropout", 0.0)
        return isinstance(part, BatchNorm) or (isinstance(dropout, float | int) and dropout > 0)
    code = getattr(type(part).forward, "__code__", None)
    return code is not None and "training" in code.co_names
