"""Reads the graphs of losses: notes wrong arguments of a loss, and records by what a loss divides."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import prod
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import _disable_current_modes

from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words
from samestep.verify.trace import Note, Place

_MOST_NODES = 256  # operations of a graph that are inspected, those next to the loss first: a guess
_LEAST_SAMPLES = 2  # a single sample has the same result with and without the broadcast
_WRONG = {
    ("LogSoftmaxBackward0", "SoftmaxBackward0"): ("cross_entropy", "softmax", "logits"),
    ("NllLossBackward0", "SoftmaxBackward0"): ("nll_loss", "softmax", "log_softmax"),
    ("BinaryCrossEntropyWithLogitsBackward0", "SigmoidBackward0"): (
        "binary_cross_entropy_with_logits",
        "sigmoid",
        "logits",
    ),
}
"""For an operation and the previous one: the loss, the activation, and what the loss takes instead."""
_DISTANCES = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")


class LossArguments(Check):
    """Inspects the end of the graph of each loss; hooks of the losses would break `torch.jit.script`."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, Place | None], str] = {}

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        for operation, before in islice(_edges(roots), _MOST_NODES):
            wrong = _WRONG.get((operation.name(), before.name()))
            if wrong is not None:
                loss, activation, wanted = wrong
                text = f"gives the result of {activation} to {loss}. Give it the {wanted}."
                self._texts.setdefault(("softmax-before-loss", current_place()), text)
            elif operation.name() in _DISTANCES and _is_broadcast(before):
                text = (
                    "compares each output with each target: their shapes are (N, 1) and (N,). Give both "
                    "the same shape."
                )
                self._texts.setdefault(("loss-broadcast", current_place()), text)

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for (code, place), text in self._texts.items():
            yield Note(code, f"The loss of the backward{in_words(place)} {text}", place)


def _edges(roots: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each operation with each of those that computed its inputs, breadth first, copies left out."""
    waiting, seen = deque(roots), {*roots}
    while waiting:
        operation = waiting.popleft()
        for before, _ in operation.next_functions:
            while before is not None and before.name() == "ToCopyBackward0":  # autocast
                before = before.next_functions[0][0]  # noqa: PLW2901
            if before is None:
                continue
            yield operation, before
            if before not in seen:
                seen.add(before)
                waiting.append(before)


def _is_broadcast(operation: Any) -> bool:
    """Return whether an operation expands N values, as a vector or a column, to N x N."""
    if operation.name() != "ExpandBackward0" or isinstance(operation, BackwardCFunction):
        return False
    before, after = (
        [int(size) for size in sizes]
        for sizes in (operation._saved_self_sym_sizes, operation._input_metadata[0].shape)  # noqa: SLF001
    )
    size = max(before, default=0)
    return after == [size, size] and before in ([size], [size, 1]) and size >= _LEAST_SAMPLES


_MOST_OPERATIONS = 32  # operations of a graph in which divisors are read: of the loss, not of the model
_MEAN = 1
"""The value of torch's enumeration of reductions (`torch.nn._reduction`) that stands for the mean."""


def loss_divisors(losses: Sequence[Tensor]) -> list[float]:
    """Return the divisors in the graphs of losses, from the loss on; before backward, which frees them."""
    roots = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    divisors: list[float] = []
    for node in islice(_operations(roots), _MOST_OPERATIONS):
        with suppress(RuntimeError):  # an earlier backward has freed what it saves
            divisors += _divisor(node)
    return divisors


def _operations(roots: Sequence[Any]) -> Iterator[Any]:
    """Yield the operations of a graph, breadth first, each once."""
    seen = set()
    for node in chain(roots, (before for _, before in _edges(roots))):
        if node not in seen:
            seen.add(node)
            yield node


def _divisor(node: Any) -> Iterator[float]:
    """Yield by what an operation divides, if it makes a mean of several numbers or divides one by a count."""
    if isinstance(node, BackwardCFunction):  # which may have the name of one of torch, as a split call does
        return
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
                value = float(divisor.detach())
            if value.is_integer():
                yield value
