"""Reads the graphs of losses: notes wrong arguments and divisors, and records by what a loss divides."""

import contextlib
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from samestep.base.folders import PACKAGE
from samestep.base.units import counted
from samestep.ranks.hang.script_position import current_place, is_script
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


_BETWEEN = (PACKAGE, str(Path(torch.__file__).parent), contextlib.__file__)
"""Folders and files of the calls between the script's backward and a check."""
_LEAST_FULL = 2  # steps with as many backwards as their divisor, after which a step with fewer is noted


class AccumulationRemainder(Check):
    """Compares the divisor of each loss with the number of backwards of its step.

    Only losses are compared that the script itself divides, by a constant, in one line.
    """

    def __init__(self) -> None:
        self._window: list[tuple[Place | None, float]] = []
        """Line and divisor of each backward since the last step; divisor 0 if there is none."""
        self._full: Counter[tuple[Place | None, float]] = Counter()
        self._short: dict[tuple[Place | None, float], list[int]] = {}
        """Numbers of backwards of the steps with fewer than the divisor."""
        self._optimizers: set[int] = set()

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        root = losses[0].grad_fn if len(losses) == 1 else None
        self._window.append((_place_of_backward(), 0.0 if root is None else _constant_divisor(root)))

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        self._optimizers.add(id(optimizer))
        window, self._window = self._window, []
        if len({*window}) == 1 and window[0][0] is not None:
            divisor = window[0][1]
            if len(window) == divisor > 1:
                self._full[window[0]] += 1
            elif len(window) < divisor:
                self._short.setdefault(window[0], []).append(len(window))

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`; several optimizers may step after different numbers of backwards."""
        for (place, divisor), numbers in self._short.items():
            if self._full[place, divisor] >= _LEAST_FULL and len(self._optimizers) == 1:
                yield Note(
                    "accumulation-remainder",
                    f"The loss of the backward{in_words(place)} is divided by {divisor:g}, but "
                    f"{counted(len(numbers), 'step')} had fewer backwards, such as {min(numbers)}: the "
                    "gradients are too small. Divide by the number of batches of the step, or leave out the "
                    "remainder.",
                    place,
                )


def _place_of_backward() -> Place | None:
    """Return the line of the script that starts the running backward; None if a library starts it."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as in `script_position`
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or not is_script(frame.f_code.co_filename):
        return None
    return frame.f_code.co_filename, frame.f_lineno


def _constant_divisor(root: Any) -> float:
    """Return the number by which a loss, which is no sum, was divided last; 0 without one."""
    node = root.next_functions[0][0] if root.name() == "MulBackward0" else root  # GradScaler.scale
    if node is None or node.name() != "DivBackward0":
        return 0.0
    before = node.next_functions[0][0]
    is_sum = before is None or before.name().startswith("AddBackward")
    return 0.0 if is_sum else next(_divisor(node), 0.0)


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
    if operation.name() != "ExpandBackward0":
        return False
    before, after = (
        [int(size) for size in sizes]
        for sizes in (operation._saved_self_sym_sizes, operation._input_metadata[0].shape)  # noqa: SLF001
    )
    size = after[0]
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
