"""What a loss that a model computes itself is: a sum over its slice, or a mean, and of how much.

A slice's mean is not the batch's: labels may be ignored, classes may weigh. The node of the autograd graph
that made it knows what it was divided by::

    cross entropy, nll        _saved_total_weight: the weights of the labels that count
    mse, l1, huber, bce       the elements of its input
    x.mean()                  the elements of x
    x.sum() / n               n

Behind it are often factors, sums of losses and views; they are passed through, as long as all that is added
up was divided by the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import Tensor

_MEAN, _SUM = 1, 2  # torch's numbers for `reduction=`


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a value was reduced by."""

    kind: Literal["sum", "mean"]
    weight: float = 1.0
    """Of a mean: what the sum was divided by."""


Reader: TypeAlias = Callable[[Any], Reduction | None]


def reduction_of(value: Tensor) -> Reduction | None:
    """Return how `value` was reduced; None where its graph does not tell, or there is none."""
    return _read(value.grad_fn, depth=40)


def _read(node: Any, depth: int) -> Reduction | None:
    if node is None or not depth:
        return None
    name = type(node).__name__.rstrip("0123456789")
    if name in _PASSED:
        return _read_any(node, depth - 1)
    if name == "DivBackward":
        return _divided(node, depth - 1)
    reader = _READERS.get(name)
    return None if reader is None else reader(node)


def _read_any(node: Any, depth: int) -> Reduction | None:
    """Read all inputs that have a graph; None unless they agree."""
    inputs = [one for one, _ in node.next_functions if one is not None]
    found = [_read(one, depth) for one in inputs]
    return found[0] if found and all(one == found[0] for one in found) else None


def _divided(node: Any, depth: int) -> Reduction | None:
    found = _read_any(node, depth)
    divisor = getattr(node, "_saved_other", None)
    if found is None or found.kind == "mean" or not isinstance(divisor, Tensor) or divisor.numel() != 1:
        return found  # a mean over a number, or a sum over one that is the same for all ranks
    return Reduction("mean", float(divisor))


def _by_labels(node: Any) -> Reduction | None:
    if node._saved_reduction != _MEAN:  # noqa: SLF001 - the graph's own public way to its saved values
        return _sum_or_nothing(node)
    return Reduction("mean", float(node._saved_total_weight))  # noqa: SLF001


def _by_elements(node: Any) -> Reduction | None:
    if node._saved_reduction != _MEAN:  # noqa: SLF001
        return _sum_or_nothing(node)
    return Reduction("mean", float(node._saved_self.numel()))  # noqa: SLF001


def _sum_or_nothing(node: Any) -> Reduction | None:
    return Reduction("sum") if node._saved_reduction == _SUM else None  # noqa: SLF001


def _mean(node: Any) -> Reduction | None:
    count = getattr(node, "_saved_self_sym_numel", None)
    if count is None:
        sizes = getattr(node, "_saved_self_sym_sizes", None)
        if sizes is None:
            return None
        count = 1
        for size in sizes:
            count *= int(size)
    return Reduction("mean", float(count))


_READERS: Mapping[str, Reader] = {
    "NllLossBackward": _by_labels,
    "NllLoss2DBackward": _by_labels,
    "MseLossBackward": _by_elements,
    "SmoothL1LossBackward": _by_elements,
    "HuberLossBackward": _by_elements,
    "BinaryCrossEntropyBackward": _by_elements,
    "BinaryCrossEntropyWithLogitsBackward": _by_elements,
    "SoftMarginLossBackward": _by_elements,
    "MeanBackward": _mean,
    "SumBackward": lambda _: Reduction("sum"),
}
_PASSED = frozenset(
    {
        "MulBackward",
        "NegBackward",
        "AddBackward",
        "SubBackward",
        "AliasBackward",
        "CloneBackward",
        "ToCopyBackward",
        "ViewBackward",
        "UnsafeViewBackward",
        "ReshapeAliasBackward",
        "SqueezeBackward",
        "UnsqueezeBackward",
    }
)
