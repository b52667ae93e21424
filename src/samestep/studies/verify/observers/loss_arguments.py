"""Notes losses that get probabilities instead of logits, and losses that broadcast their arguments."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.ranks.hang.script_position import current_place
from samestep.studies.verify.observers.check import Check, in_words, note
from samestep.studies.verify.trace import Note

_WRONG = {
    "cross_entropy": ("SoftmaxBackward0", "softmax", "logits"),
    "nll_loss": ("SoftmaxBackward0", "softmax", "log_softmax"),
    "binary_cross_entropy_with_logits": ("SigmoidBackward0", "sigmoid", "logits"),
}
"""For each loss: the operation whose result it does not take, its name, and what the loss takes."""
_LEAST_SAMPLES = 2
"""Elements of a loss that broadcasts them."""
_Place = tuple[str, int] | None


class LossArguments(Check):
    """Inspects the arguments of the common losses."""

    def __init__(self) -> None:
        self._notes: dict[_Place, Note] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See `Check.attached`."""
        with ExitStack() as stack:
            for hook in declarations.CLASS_LOSSES:
                inspect = partial(self._inspect, partial(self._note_activation, hook.attribute))
                stack.enter_context(attached(hook, wrapping(inspect)))
            for hook in declarations.DISTANCE_LOSSES:
                inspect = partial(self._inspect, partial(self._note_broadcast, hook.attribute))
                stack.enter_context(attached(hook, wrapping(inspect)))
            yield

    def _inspect(
        self,
        receive: Callable[[Tensor, Tensor], None],
        original: Callable[..., Any],
        input: Any,  # noqa: A002 - as torch names it
        target: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if (
            not torch.compiler.is_compiling()
            and isinstance(input, Tensor)
            and isinstance(target, Tensor)
            and input.grad_fn
        ):
            receive(input, target)
        return original(input, target, *args, **kwargs)

    def _note_activation(self, loss: str, found: Tensor, target: Tensor) -> None:
        del target
        operation, name, wanted = _WRONG[loss]
        if found.grad_fn is not None and found.grad_fn.name() == operation:
            place = current_place()
            text = f"{loss} gets the result of {name}{in_words(place)}. Give it {wanted}."
            self._notes.setdefault(place, note("softmax-before-loss", text, place))

    def _note_broadcast(self, loss: str, found: Tensor, target: Tensor) -> None:
        if found.ndim == target.ndim or found.numel() != target.numel() or found.numel() < _LEAST_SAMPLES:
            return
        if math.prod(_broadcast(found.shape, target.shape)) > found.numel():
            place = current_place()
            text = (
                f"{loss}{in_words(place)} compares each output with each target, since the shapes are "
                f"{tuple(found.shape)} and {tuple(target.shape)}. Give both the same shape."
            )
            self._notes.setdefault(place, note("loss-broadcast", text, place))

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        yield from self._notes.values()


def _broadcast(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the shape that two shapes are broadcast to."""
    return [max(pair) for pair in zip_longest(reversed(first), reversed(second), fillvalue=1)]
