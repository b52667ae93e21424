"""Counts the samples of each step by the calls of models, and detects evaluations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from samestep.hooks.tensor_tree import leaves
from samestep.observe.clock.model_gradients import ModelInfo
from samestep.observe.sanitize.input_digests import data_in


class Size(NamedTuple):
    """Size of a model's inputs."""

    rows: int
    elements: int
    """Elements of the input tensors, whether `rows` are those of all ranks or of this one."""


_NOTHING = Size(0, 0)


class SampleCounter:
    """Counts the samples of the current step.

    A call without gradients is not always an evaluation: a GAN's discriminator and a distilled student are
    trained on the output of another model. A call is an evaluation if the model is in evaluation mode and was
    trained before, or if nothing was trained on the batch before the next one is requested.
    """

    def __init__(self) -> None:
        self._trained: set[int] = set()
        """Ids of the models that were trained."""
        self.count, self.elements = _NOTHING
        self.evaluated = False
        self._eval_call = _NOTHING
        """Size of the last call in evaluation mode with gradients, which a backward may follow."""
        self.has_trained = self._batch_trained = self._batch_evaluated = False
        """Whether a training call was made since the last backward, or with this batch; or any other call."""

    def trained(self, model: ModelInfo, size: Size) -> None:
        """Record a training call."""
        self._add(size)
        self.has_trained = self._batch_trained = True
        self._trained |= model.ids

    def called_otherwise(self, evaluated: int | None, size: Size | None) -> None:
        """Record any other call.

        Args:
            evaluated: id of the model, if it is in evaluation mode and called without gradients.
            size: size of the inputs, if it is called with gradients.
        """
        self._batch_evaluated = True
        if size is not None:
            self._eval_call = size
        elif evaluated in self._trained:
            self.evaluated = True

    def began_backward(self) -> None:
        """Record that a backward begins."""
        if not self.has_trained:
            self._add(self._eval_call)
        self.has_trained, self._eval_call, self._batch_trained = False, _NOTHING, True

    def loading(self) -> bool:
        """Record that the next batch is requested; return whether the last one was only evaluated."""
        was_evaluation = self._batch_evaluated and not self._batch_trained
        self.evaluated |= was_evaluation
        self._batch_trained = self._batch_evaluated = False
        self._eval_call = _NOTHING
        return was_evaluation

    def next_step(self) -> None:
        """Reset the counts for the next step."""
        self.count, self.elements = _NOTHING
        self.evaluated = False

    def _add(self, size: Size) -> None:
        self.count += size.rows
        self.elements += size.elements


def size_of(inputs: Sequence[Any]) -> tuple[int, int]:
    """Return the rows and elements of a model's inputs; see `Size`."""
    first = inputs[0] if inputs else None
    if isinstance(first, Tensor) and first.dim() and not first.requires_grad:  # as in most scripts
        return first.size(0), first.numel()
    found = data_in(tuple(inputs))
    if len(found) > 1 and all(one.dim() == 3 for one in found):  # a list of images
        return len(found), sum(one.numel() for one in found)
    if found:
        return len(found[0]), found[0].numel()
    leafs = (one for _, one in leaves(tuple(inputs)) if isinstance(one, Tensor) and one.dim() and one.is_leaf)
    return next(((len(one), one.numel()) for one in leafs), _NOTHING)
