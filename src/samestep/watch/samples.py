"""The samples of each step: what models were called with to learn from, and what they were shown besides."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from samestep.watch.inputs import data_in
from samestep.watch.models import Model
from samestep.watch.tree import leaves


class Size(NamedTuple):
    """How much a model is called with."""

    rows: int
    elements: int
    """Numbers in the tensors whose rows are counted, of all ranks' rows or of this one's."""


_NOTHING = Size(0, 0)


class Samples:
    """Counts the samples of the step under way.

    A call without gradients need not be an evaluation: a GAN's discriminator and a student learn from what
    another model makes of the same batch. It is one where the model is in evaluation mode and was trained
    before, or where nothing was learnt from the batch by the time the next one is asked for.
    """

    def __init__(self) -> None:
        self._trained: set[int] = set()
        """Models that were trained, by id."""
        self.count, self.elements = _NOTHING
        self.evaluated = False
        self._in_doubt = _NOTHING
        """Of the last call in evaluation mode with gradients, which may be differentiated."""
        self.learns = self._has_learnt = self._has_looked = False
        """Whether a call of training was made since the last backward; and one, or another, of this batch."""

    def learns_from(self, model: Model, size: Size) -> None:
        """Note an outermost call of training."""
        self._add(size)
        self.learns = self._has_learnt = True
        self._trained |= model.ids

    def looked(self, evaluated: int | None, size: Size | None) -> None:
        """Note any other.

        Args:
            evaluated: the id of a model in evaluation mode, where it is called without gradients.
            size: where it is called with them.
        """
        self._has_looked = True
        if size is not None:
            self._in_doubt = size
        elif evaluated in self._trained:
            self.evaluated = True

    def differentiated(self) -> None:
        """Note that a backward begins."""
        if not self.learns:
            self._add(self._in_doubt)
        self.learns, self._in_doubt, self._has_learnt = False, _NOTHING, True

    def loading(self) -> bool:
        """Note that the next batch is asked for; return whether the last was for an evaluation alone."""
        was_evaluation = self._has_looked and not self._has_learnt
        self.evaluated |= was_evaluation
        self._has_learnt = self._has_looked = False
        self._in_doubt = _NOTHING
        return was_evaluation

    def next_step(self) -> None:
        """Begin to count anew."""
        self.count, self.elements = _NOTHING
        self.evaluated = False

    def _add(self, size: Size) -> None:
        self.count += size.rows
        self.elements += size.elements


def size_of(given: Sequence[Any]) -> tuple[int, int]:
    """Return how many rows a model is called with, and how many numbers are in them; see `Size`."""
    first = given[0] if given else None
    if isinstance(first, Tensor) and first.dim() and not first.requires_grad:  # as in most scripts
        return first.size(0), first.numel()
    found = data_in(tuple(given))
    if len(found) > 1 and all(one.dim() == 3 for one in found):  # a list of images
        return len(found), sum(one.numel() for one in found)
    if found:
        return len(found[0]), found[0].numel()
    inputs = (one for _, one in leaves(tuple(given)) if isinstance(one, Tensor) and one.dim() and one.is_leaf)
    return next(((len(one), one.numel()) for one in inputs), _NOTHING)
