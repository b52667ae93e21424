"""The samples of each step: what models were called with to learn from, and what they were shown besides."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samestep.watch.inputs import data_in
from samestep.watch.tree import leaves

_NOTHING = (0, 0)


class Samples:
    """Counts the samples of the step under way.

    A call without gradients need not be an evaluation: a GAN's discriminator and a student learn from what
    another model makes of the same batch. It is one where the model is in evaluation mode and was trained
    before, or where nothing was learnt from the batch by the time the next one is asked for.

    Args:
        own: returns how many of the samples that a model is called with are this rank's.
    """

    def __init__(self, own: Callable[[int], int]) -> None:
        self._own = own
        self._trained: set[int] = set()
        """Models that were trained, by id."""
        self.count, self.evaluated = 0, False
        self.elements = 0
        """Numbers in the tensors whose rows are counted, this rank's or not."""
        self._in_doubt = _NOTHING
        """Size of the last call in evaluation mode with gradients, which may be differentiated."""
        self.learns = self._has_learnt = self._has_looked = False
        """Whether a call of training was made since the last backward; and one, or another, of this batch."""

    def called(self, module: nn.Module, given: Sequence[Any], *, is_training: bool) -> None:
        """Note an outermost call."""
        if is_training:
            self._add(size_of(given))
            self.learns = self._has_learnt = True
            if id(module) not in self._trained:
                self._trained |= {
                    id(module),
                    id(getattr(module, "module", None)),
                }  # of a wrapper the model too
            return
        self._has_looked = True
        if torch.is_grad_enabled():
            self._in_doubt = size_of(given)
        elif not module.training and id(module) in self._trained:
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
        self.count, self.elements, self.evaluated = 0, 0, False

    def _add(self, size: tuple[int, int]) -> None:
        rows, elements = size
        self.count += self._own(rows)
        self.elements += elements


def size_of(given: Sequence[Any]) -> tuple[int, int]:
    """Return how many rows a model is called with, and how many numbers are in them."""
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
