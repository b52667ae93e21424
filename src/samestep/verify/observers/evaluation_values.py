"""Notes wrong results in evaluation mode: functions drop values, or spectral norm is not begun."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.optim.optimizer import Optimizer

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Call, Check, checksum, in_words
from samestep.verify.script_settings import argument, attention_rate
from samestep.verify.trace import Note, Place


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
