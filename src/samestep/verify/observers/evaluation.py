"""Notes wrong modes of models, and wrong results in evaluation mode.

A model trains in evaluation mode after an evaluation, or is evaluated in training mode; functions drop values
in an evaluation, or spectral norm is not begun.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as Dropout
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Call, Check, checksum, in_words
from samestep.verify.script_settings import argument, attention_rate
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


@dataclass(slots=True, eq=False)
class _Drops:
    """The calls of one model in which functions drop values."""

    drops_in_training: bool = False  # whether a call in training mode dropped values
    evaluations: int = 0  # number of calls in evaluation mode without gradients
    dropping: int = 0  # number of those that dropped values
    function: str = ""  # the first function that did, and its line
    place: Place | None = None
    inputs: set[int] = field(default_factory=set)  # checksums of the inputs of those since the last step
    is_repeated: bool = False  # whether two of those had the same inputs: an estimate of uncertainty


class DropoutInEvaluation(Check):
    """Finds models that drop values in evaluation mode through a function, as in training mode.

    Some models drop values in evaluation on purpose: they pass ``training=True``, keep a module in training
    mode, or are called several times with the same inputs.
    """

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[nn.Module, _Drops] = WeakKeyDictionary()
        self._running: Call | None = None
        self._has_dropped = False  # whether the running call has dropped values

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        usual = [hook for hook in declarations.DROPOUTS if not hook.attribute.endswith("alpha_dropout")]
        return {
            **{hook: self._of_function(hook.attribute) for hook in usual},
            declarations.ATTENTION: wrapping(self._attend),
        }

    def _of_function(self, name: str) -> Make:
        def call(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
            is_unstated = argument(args, kwargs, 2, "training", None) is None
            if is_unstated and not torch.compiler.is_compiling() and argument(args, kwargs, 1, "p", 0.5):
                self._note(name)
            return original(*args, **kwargs)

        return wrapping(call)

    def _attend(self, original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if attention_rate(args, kwargs) and not torch.compiler.is_compiling():
            self._note("scaled_dot_product_attention")
        return original(*args, **kwargs)

    def _note(self, name: str) -> None:
        call = self._running
        if call is None:
            return
        drops = self._models[call.module]
        drops.drops_in_training |= call.is_training and call.has_grad
        if _is_evaluation(call) and not self._has_dropped:
            self._has_dropped = True
            drops.dropping += 1
            if not drops.function:
                drops.function, drops.place = name, current_place()

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """See `Check.called`."""
        self._running, self._has_dropped = call, False
        drops = self._models.setdefault(call.module, _Drops())
        if _is_evaluation(call):
            drops.evaluations += 1
            key = hash(tuple(checksum(tensor) for _, tensor in leaves(tuple(inputs))))
            drops.is_repeated |= key in drops.inputs
            drops.inputs.add(key)

    def ended(self, call: Call) -> None:
        """See `Check.ended`."""
        del call
        self._running = None

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        for drops in self._models.values():
            drops.inputs.clear()

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for model, drops in self._models.items():
            is_constant = drops.dropping == drops.evaluations > 0
            if drops.drops_in_training and is_constant and not drops.is_repeated:
                remedy = (
                    "Give it dropout_p=0.0 unless self.training"
                    if drops.function == "scaled_dot_product_attention"
                    else "Give it training=self.training, which is True otherwise"
                )
                yield Note(
                    "draws-in-evaluation",
                    f"{drops.function}{in_words(drops.place)} drops values in each evaluation of "
                    f"{type(model).__name__}, though that is in evaluation mode. {remedy}.",
                    drops.place,
                )


def _is_evaluation(call: Call) -> bool:
    """Return whether a call is without gradients, and all of the model is in evaluation mode."""
    return not call.has_grad and not any(part.training for part in call.module.modules())


_LEAST_OF_NORM = 0.5
"""Fraction of a weight's spectral norm that its estimate reaches after the first updates; a random one is far
below."""


class SpectralNormNotBegun(Check):
    """Compares the norm of a weight with the estimate of `torch.nn.utils.spectral_norm`.

    It compares them in the first evaluation. Only calls in training mode update the random vectors from
    which the norm is estimated.
    """

    def __init__(self) -> None:
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._places: dict[Place | None, str] = {}

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """See `Check.called`."""
        del inputs
        if call.has_grad or call.is_training:
            return
        for part in call.module.modules():
            hooks = [hook for hook in part._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]  # noqa: SLF001
            if hooks and not part.training and part not in self._seen:
                self._seen.add(part)
                if any(_is_far_below(part, hook) for hook in hooks):
                    self._places.setdefault(current_place(), type(part).__name__)

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for place, name in self._places.items():
            yield Note(
                "stale-buffers-in-evaluation",
                f"The evaluation{in_words(place)} divides the weight of a {name} by less than half of the "
                "spectral norm: the vectors that estimate it are random before the first calls in training "
                "mode. Make such calls before, or use torch.nn.utils.parametrizations.spectral_norm.",
                place,
            )


@torch.no_grad()
def _is_far_below(module: nn.Module, norm: SpectralNorm) -> bool:
    """Return whether the estimate that a module uses is far below the norm of the weight."""
    weight, u, v = (getattr(module, norm.name + suffix) for suffix in ("_orig", "_u", "_v"))
    matrix = norm.reshape_weight_to_matrix(weight).double()
    estimate = torch.dot(u.double(), torch.mv(matrix, v.double()))
    return bool(estimate < _LEAST_OF_NORM * torch.linalg.matrix_norm(matrix, 2))
