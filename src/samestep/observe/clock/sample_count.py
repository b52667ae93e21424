"""Counts the samples of each step by the calls of models, and detects evaluations."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samestep.hooks.tensor_tree import data_in, leaves
from samestep.observe.clock.model_gradients import ModelInfo


class SampleCounter:
    """Counts the samples of the current step.

    A call without gradients is not always an evaluation: a GAN's discriminator and a distilled student are
    trained on the output of another model. A call is an evaluation if the model is in evaluation mode and was
    trained before, or if nothing was trained on the batch before the next one is requested.
    """

    def __init__(self) -> None:
        self._trained: set[int] = set()  # ids of the models that were trained
        self.count = self.elements = 0
        """Rows, and elements of the input tensors, in the training calls of the step."""
        self.evaluated = False
        self.all_trained = self.all_otherwise = 0
        """Rows of all training calls, and of all other calls, since the beginning."""
        self._eval_call = (0, 0)
        self.has_trained = self._batch_trained = self._batch_evaluated = False
        """Whether a training call was made since the last backward, or with this batch; or any other call."""

    def trained(self, model: ModelInfo, rows: int, elements: int) -> None:
        """Record a training call."""
        self._add(rows, elements)
        self.has_trained = self._batch_trained = True
        self._trained |= model.ids

    def called_in_evaluation(self, rows: int, elements: int) -> None:
        """Record a call in evaluation mode with gradients, which a backward may follow."""
        self._batch_evaluated = True
        self._eval_call = rows, elements
        self.all_otherwise += rows

    def called_without_gradients(self, rows: int, evaluated: int | None) -> None:
        """Record a call without gradients; `evaluated` is the model's id if it is in evaluation mode."""
        self._batch_evaluated = True
        self.evaluated |= evaluated in self._trained
        self.all_otherwise += rows

    def began_backward(self) -> None:
        """Record that a backward begins."""
        if not self.has_trained:
            self._add(*self._eval_call)
            self.all_otherwise -= self._eval_call[0]
        self.has_trained, self._eval_call, self._batch_trained = False, (0, 0), True

    def loading(self) -> bool:
        """Record that the next batch is requested; return whether the last one was only evaluated."""
        was_evaluation = self._batch_evaluated and not self._batch_trained
        self.evaluated |= was_evaluation
        self._batch_trained = self._batch_evaluated = False
        self._eval_call = (0, 0)
        return was_evaluation

    def next_step(self) -> None:
        """Reset the counts for the next step."""
        self.count = self.elements = 0
        self.evaluated = False

    def _add(self, rows: int, elements: int) -> None:
        self.count += rows
        self.all_trained += rows
        self.elements += elements


def size_of(inputs: Sequence[Any]) -> tuple[int, int]:
    """Return the rows, and the elements in them, of the samples in a model's inputs."""
    first = inputs[0] if inputs else None
    if isinstance(first, Tensor) and first.dim() and not first.requires_grad:  # as in most scripts
        return first.size(0), first.numel()
    found = data_in(tuple(inputs))
    if len(found) > 1 and all(one.dim() == 3 for one in found):  # a list of images
        return len(found), sum(one.numel() for one in found)
    if found:
        return len(found[0]), found[0].numel()
    leafs = (one for _, one in leaves(tuple(inputs)) if isinstance(one, Tensor) and one.dim() and one.is_leaf)
    return next(((len(one), one.numel()) for one in leafs), (0, 0))
