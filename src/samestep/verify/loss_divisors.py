"""Reads by what a loss divides the sum of its parts: a mean's number of elements, or of labels."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from samestep.verify.observers.loss_arguments import edges

_MOST_NODES = 32  # operations of a graph that are inspected, those next to the loss first
_MEAN = 1
"""The value of torch's enumeration of reductions (`torch.nn._reduction`) that stands for the mean."""


def loss_divisors(losses: Sequence[Tensor]) -> list[float]:
    """Return the divisors in the graphs of losses, from the loss on; before backward, which frees them."""
    roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    found: list[float] = []
    for node in islice(_nodes(roots), _MOST_NODES):
        with suppress(RuntimeError):  # an earlier backward has freed what it saves
            found += _divisor(node)
    return found


def _nodes(roots: Sequence[Any]) -> Iterator[Any]:
    """Yield the operations of a graph, breadth first, each once."""
    seen = set()
    for node in chain(roots, (before for _, before in edges(roots))):
        if node not in seen:
            seen.add(node)
            yield node


def _divisor(node: Any) -> Iterator[float]:
    """Yield by what an operation divides, if it makes a mean of several numbers or divides one by a count."""
    name = node.name().rstrip("0123456789").replace("Loss2D", "Loss")
    if name.endswith("LossBackward") and getattr(node, "_saved_reduction", None) == _MEAN:
        weight = getattr(node, "_saved_total_weight", None)  # of the labels that are not ignored
        yield float(node._saved_self.numel() if weight is None else weight)  # noqa: SLF001
    elif name == "MeanBackward":
        yield float(prod(node._saved_self_sym_sizes))  # noqa: SLF001
    elif name == "DivBackward":
        divisor = node._saved_other  # noqa: SLF001
        if isinstance(divisor, Tensor) and divisor.numel() == 1:
            # A mode that dispatches operations would get a plain number in the place of a number's tensor.
            with _disable_current_modes():
                value = float(divisor)
            if value.is_integer():
                yield value
