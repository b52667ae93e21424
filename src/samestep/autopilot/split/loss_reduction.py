"""Reads how a model reduces its samples to a scalar: by a sum, or by a mean with a known total weight.

The mean of a slice is not the mean of the batch: labels may be ignored, classes may have weights. The total
weight is the divisor of the operation that reduces the samples::

    cross entropy, nll        the total weight of the labels that count
    mse, l1, bce, margins     the number of elements
    x.mean()                  the number of elements
    x.sum() / n               n
    x.sum() * (1 / n)         n
    x.nanmean()               the number of elements that are not NaN

Factors, sums of losses and views may follow this operation, if the weights of all terms are proportional.
`reduction_of` reads the autograd graph. Losses in evaluation, accuracies and detached values have none:
`ForwardReductions` observes the operations of a call, and records the same for each reduced tensor. If
neither finds the weight, the result is None: a weight is never assumed.

A weight that depends on labels or a mask stays a tensor on its device: reading it would make the host wait
for the device in each call.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.autopilot.state.saved_state import version_of
from samestep.hooks.thread_values import bound


@dataclass(frozen=True, slots=True)
class Weight:
    """The divisor of a mean; weights of equal origin are the same number, and are compared without a read."""

    value: float | Tensor = field(compare=False, repr=False)
    """A number that the host knows, or a tensor of one element that depends on labels or a mask."""
    origin: Hashable
    """The number, or the tensors and operations that `value` is computed from."""

    @classmethod
    def of(cls, number: float) -> "Weight":
        """Return the weight that is this number."""
        return cls(float(number), float(number))

    @classmethod
    def at(cls, factor: Tensor) -> "Weight":
        """Return the weight in a tensor of one element, whose memory must last until weights are compared."""
        if is_python_number(factor):
            return cls.of(factor.item())
        return cls(factor, origin_of(factor))

    @classmethod
    def of_labels(cls, total: Tensor, target: Tensor, classes: Tensor | None, ignored: int) -> "Weight":
        """Return the total weight of `target`, given the weights of the classes and the ignored label."""
        by_class = None if classes is None else origin_of(classes)
        return cls(total, ("labels", origin_of(target), by_class, ignored))

    def times(self, factor: "Weight") -> "Weight":
        """Return the product of two weights."""
        if isinstance(self.value, float) and isinstance(factor.value, float):
            return Weight.of(self.value * factor.value)
        return Weight(_scalar(self.value) * _scalar(factor.value), ("product", self.origin, factor.origin))

    def reciprocal(self) -> "Weight":
        """Return 1 divided by this weight, which is infinite if this weight is 0."""
        if isinstance(self.value, float):
            return Weight.of(1 / self.value if self.value else math.inf)
        return Weight(self.value.detach().double().reciprocal(), ("reciprocal", self.origin))

    def read(self) -> float:
        """Return the number; the host waits for the device if it is a tensor."""
        return float(self.value)

    def on(self, device: torch.device) -> Tensor:
        """Return the weight as a float64 tensor of shape () on a device, without waiting for that device."""
        if isinstance(self.value, float):
            # A new tensor of a number is filled on the device; a tensor of a list is copied from the host.
            return torch.full((), self.value, dtype=torch.float64, device=device)
        value = self.value.detach().reshape(())
        return value.to(device, torch.float64, non_blocking=device.type != "cpu")


ONE = Weight.of(1.0)
_SMALLER = {
    torch.float64: torch.zeros((), dtype=torch.float16, device="cpu"),
    torch.int64: torch.zeros((), dtype=torch.int8, device="cpu"),
}
"""The types of torch's tensors of Python numbers, each with a tensor of a smaller type of its kind."""


def is_python_number(tensor: Tensor) -> bool:
    """Return whether torch has made a tensor from a Python number, such as 2 in ``loss / 2``.

    Such a tensor is on the host, whichever device computes. It differs from a tensor of the script by its
    part in type promotion: it does not widen a smaller type of its kind.
    """
    small = _SMALLER.get(tensor.dtype)
    if small is None or tensor.dim() or tensor.device.type != "cpu":
        return False
    return torch.result_type(tensor, small) == small.dtype


def origin_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors of the same memory, as long as nothing writes to it."""
    layout = tuple(tensor.shape), tensor.stride(), tensor.dtype
    return "tensor", tensor.data_ptr(), *layout, version_of(tensor)


def _scalar(value: float | Tensor) -> Any:
    """Return a number, or the number of a tensor in double precision."""
    return value if isinstance(value, float) else value.detach().reshape(()).double()


LOSSES_OF_ELEMENTS = (
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
)
"""Operations of torch that are losses over all elements of a tensor."""
LINEAR = (
    *("add", "sub", "neg", "alias", "clone", "_to_copy", "view", "_unsafe_view", "squeeze", "unsqueeze"),
    *("stack", "cat"),
)
"""Operations that add their operands, or have one."""
_MEAN, _SUM = 1, 2  # torch's numbers for `reduction=`
ELEMENTS = "elements"
"""The source of a weight that is a number of elements and does not depend on labels."""
_SEVERAL = "several"
"""The source of a sum of means whose weights are numbers of different ones."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of samples to a scalar."""

    kind: Literal["sum", "mean"]  # a sum, or a mean: a sum divided by `weight`
    weight: Weight = ONE  # the divisor of a mean
    # an identifier for the origin of the weight, or `_SEVERAL`
    source: Hashable = ELEMENTS
    # the weights of further terms of a sum of means; they must be proportional to `weight` on all ranks
    further: tuple[Weight, ...] = ()

    def values(self) -> list[float]:
        """Return the different weights of all terms; this reads those that are tensors, so only in checks."""
        return list(dict.fromkeys(weight.read() for weight in (self.weight, *self.further)))


class Independent:
    """The reading of a scalar that does not depend on samples, such as a learnable scale."""


INDEPENDENT = Independent()
Term: TypeAlias = Reduction | Independent | None
"""The reading of one scalar; None if it may depend on samples in an unknown way."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The assumptions under which a scalar is read; the equivalence check refutes the wrong ones."""

    # whether a sum divided by a number is a mean with this weight; otherwise it is a scaled sum
    divided: bool = True
    # whether a sum multiplied by a number is a mean, with the reciprocal as its weight
    multiplied: bool = False
    # whether a sum that is added to a mean does not depend on the samples, as a penalty on weights
    sums_independent: bool = False
    # whether the inner one of two reductions is over the samples, as in `x.mean(0).sum()`; otherwise the
    # outer one is, as in `x.sum(1).mean()`
    inner: bool = False
    # whether losses, means and sums are each of one sample, as of the images in a list; a mean or a sum over
    # stacked ones, or their sum divided by their number, then is over the samples
    each: bool = False


PLAIN = Reading()
READINGS = tuple(
    Reading(divided, multiplied, sums_independent, inner)
    for inner in (False, True)
    for sums_independent in (False, True)
    for divided, multiplied in ((True, False), (True, True), (False, False))
)
OF_EACH = Reading(each=True)
"""The reading of losses of samples in a list."""


def added(terms: Iterable[Term], reading: Reading) -> Term:
    """Return the reading of a sum of terms."""
    reductions: list[Reduction] = []
    for term in terms:
        if term is None:
            return None
        if isinstance(term, Reduction):
            reductions.append(term)
    if not reductions:
        return INDEPENDENT
    means = [reduction for reduction in reductions if reduction.kind == "mean"]
    if not means:
        return reductions[0]
    if len(means) < len(reductions) and not reading.sums_independent:
        return None
    first, sources = means[0], {mean.source for mean in means}
    weights = [weight for mean in means for weight in (mean.weight, *mean.further)]
    # Labels may be ignored, and the divisor of a mask kept from being 0, unlike numbers of elements.
    if len(sources) > 1 and not all(isinstance(weight.value, float) for weight in weights):
        return None
    further = tuple(dict.fromkeys(weight for weight in weights if weight != first.weight))
    return replace(first, source=first.source if len(sources) == 1 else _SEVERAL, further=further)


def divided(term: Term, divisor: Weight, *, applies: bool) -> Term:
    """Return the reading of a term divided by a number."""
    if not isinstance(term, Reduction) or not applies:
        return term
    if term.kind == "sum":
        return Reduction("mean", divisor, source="divided")
    # A divisor scales the weight of a mean: the weight of (a / n) / 2 is 2 n.
    return replace(term, weight=term.weight.times(divisor)) if term.source == "divided" else term


def scaled(term: Term, factor: Weight, *, applies: bool) -> Term:
    """Return the reading of a term times a number."""
    if not isinstance(term, Reduction) or not applies:
        return term
    return divided(term, factor.reciprocal(), applies=True)


def multiplied(terms: Iterable[Term]) -> Term:
    """Return the reading of a product of at most one reduction and factors independent of samples."""
    terms_read = list(terms)
    reductions = [term for term in terms_read if isinstance(term, Reduction)]
    if None in terms_read or len(reductions) > 1:
        return None
    return reductions[0] if reductions else INDEPENDENT


def by_labels(reduction: int, total_weight: Weight, labels: Hashable) -> Term:
    """Return the reading of a loss over labels, which may be ignored or have class weights."""
    if reduction == _SUM:
        return Reduction("sum")
    return Reduction("mean", total_weight, ("labels", labels)) if reduction == _MEAN else None


def by_elements(reduction: int, count: int) -> Term:
    """Return the reading of a loss over all elements of a tensor."""
    if reduction == _SUM:
        return Reduction("sum")
    return Reduction("mean", Weight.of(count)) if reduction == _MEAN else None


def reduction_of(value: Tensor, reading: Reading = PLAIN) -> Reduction | None:
    """Return the reduction that computed `value`, from its graph; None if it is unknown."""
    term = _Graph(reading).read(value.grad_fn, _DEPTH)
    return term if isinstance(term, Reduction) else None


def reducing_nodes(value: Tensor, reading: Reading) -> list[Any]:
    """Return the nodes in the graph of a reduced value whose gradient is NaN if it has no weight.

    These are products and quotients, and losses with class weights; without these, ignored labels have none.
    They are nodes of reduced values only: operations on samples may be part of other outputs, too.
    """
    graph = _Graph(reading)
    graph.read(value.grad_fn, _DEPTH)
    return graph.reducing


class _Graph:
    """Reads one graph."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.reducing: list[Any] = []
        """The nodes of `reducing_nodes` that have been read."""

    def read(self, node: Any, depth: int) -> Term:
        before = len(self.reducing)
        term = self._read(node, depth)
        if not isinstance(term, Reduction):
            del self.reducing[before:]  # what was read below has no part in the reduction
        elif _divides_by_weight(node):
            self.reducing.append(node)
        return term

    def _read(self, node: Any, depth: int) -> Term:
        if node is None or not depth:
            return None
        name = _name(node)
        term: Term = None
        if name == "AccumulateGrad":
            term = INDEPENDENT if node.variable.numel() == 1 else None
        elif name in _LINEAR:
            term = added(self._inputs(node, depth), self._reading)
        elif name in _PRODUCTS:
            term = self._product(node, depth, divides=name == "DivBackward")
        elif name in ("MeanBackward", "SumBackward"):
            term = self._reduced(node, depth, name)
        elif name in _ELEMENTWISE:
            inside = self._inputs(node, depth)
            term = INDEPENDENT if inside and all(term is INDEPENDENT for term in inside) else None
        elif (reader := _READERS.get(name)) is not None:
            term = Reduction("sum") if self._reading.each else reader(node)
        return term

    def _inputs(self, node: Any, depth: int) -> list[Term]:
        return [self.read(operand, depth - 1) for operand, _ in node.next_functions if operand is not None]

    def _product(self, node: Any, depth: int, *, divides: bool) -> Term:
        term = multiplied(self._inputs(node, depth))
        has_graph = [operand is not None for operand, _ in node.next_functions]
        if all(has_graph):
            return term
        factor = node._saved_other if has_graph[0] else node._saved_self  # noqa: SLF001 - no public spelling
        if not isinstance(factor, Tensor) or factor.numel() != 1 or (divides and not has_graph[0]):
            return term if not isinstance(factor, Tensor) else None
        if divides:
            return divided(term, Weight.at(factor), applies=self._reading.divided)
        return scaled(term, Weight.at(factor), applies=self._reading.multiplied)

    def _reduced(self, node: Any, depth: int, name: str) -> Term:
        """Read a mean or a sum: of samples, or of stacked or concatenated scalars, reduced before."""
        operand = next((operand for operand, _ in node.next_functions), None)
        is_stack = _name(operand) in ("StackBackward", "CatBackward")
        if self._reading.each and not is_stack:
            return Reduction("sum")
        if (is_stack and not self._reading.each) or self._reading.inner:
            inside = self.read(operand, depth - 1)
            if isinstance(inside, Reduction):
                return inside
        return Reduction("sum") if name == "SumBackward" else _mean(node)


def _name(node: Any) -> str:
    """Return the name of a graph node without its version: ``MulBackward`` for ``MulBackward0``.

    It is empty for a node that is written in Python, such as that of a split call, which has a name of torch.
    """
    return "" if isinstance(node, BackwardCFunction) else type(node).__name__.rstrip("0123456789")


def _divides_by_weight(node: Any) -> bool:
    name = _name(node)
    return name in _PRODUCTS or (name in _OF_LABELS and node._saved_weight is not None)  # noqa: SLF001


def _node_of(operation: str) -> str:
    """Return the name of the graph node of an operation: ``MseLossBackward`` for ``mse_loss``."""
    return "".join(part.capitalize() for part in operation.split("_")) + "Backward"


def _labels(node: Any) -> Term:
    try:
        target = node._saved_target  # noqa: SLF001 - no public spelling
    except RuntimeError:  # the target has been written to
        return None
    classes, ignored = node._saved_weight, node._saved_ignore_index  # noqa: SLF001
    total = Weight.of_labels(node._saved_total_weight, target, classes, ignored)  # noqa: SLF001
    return by_labels(node._saved_reduction, total, (target.data_ptr(), ignored, classes is None))  # noqa: SLF001


def _elements(node: Any) -> Term:
    return _of_selection(node, by_elements(node._saved_reduction, node._saved_self.numel()))  # noqa: SLF001


def _of_selection(node: Any, term: Term) -> Term:
    """Return the reading of a mean, with the selection as its source if it is over selected elements."""
    if not isinstance(term, Reduction) or term.kind == "sum":
        return term
    waiting, seen = [node], 0
    while waiting and seen < _NEAR:
        seen += 1
        for operand, _ in waiting.pop(0).next_functions:
            if _name(operand) in _SELECTING:
                return replace(term, source=("selected", id(operand)))
            if operand is not None:
                waiting.append(operand)
    return term


def _mean(node: Any) -> Term:
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        return None
    count = 1
    for size in sizes:
        count *= int(size)
    return _of_selection(node, Reduction("mean", Weight.of(count)))


_DEPTH = 60  # the largest number of operations after a reduction that are read: a guess, as the next one
_NEAR = 50  # the largest number of operations before a mean that are searched for a selection
_SELECTING = frozenset({"IndexBackward", "MaskedSelectBackward"})
_PRODUCTS = frozenset({"MulBackward", "DivBackward"})
_OF_LABELS = frozenset({"NllLossBackward", "NllLoss2DBackward"})
_READERS: Mapping[str, Callable[[Any], Term]] = {
    **dict.fromkeys(_OF_LABELS, _labels),
    **dict.fromkeys(map(_node_of, LOSSES_OF_ELEMENTS), _elements),
    "NansumBackward": lambda _: Reduction("sum"),  # of samples: of losses, it would leave out a slice's NaN
}
_LINEAR = frozenset(map(_node_of, (*LINEAR, "reshape_alias")))
_ELEMENTWISE = frozenset({"ExpBackward", "LogBackward", "SoftplusBackward", "SigmoidBackward", "PowBackward"})


aten = torch.ops.aten
_current: ContextVar["ForwardReductions | None"] = ContextVar("samestep_forward_reductions", default=None)
_Readings: TypeAlias = Mapping[Reading, Term]


class ForwardReductions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records the reduction that computed each tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: dict[int, tuple[Tensor, _Readings]] = {}
        """The readings by the id of the tensor, which stays unique because the tensor is kept here."""
        self._partial: set[int] = set()
        """The tensors computed from a mean or a sum over some dimensions: maybe over features only."""
        self._computed: dict[int, Tensor] = {}  # the scalars computed here whose reading is unknown
        self._compared: list[Tensor | None] = []  # tensors whose memory identifies a weight, so it must last

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._watch(func, args, kwargs, result)
        return result

    def of(self, value: Tensor, reading: Reading) -> Reduction | None:
        """Return the reduction that computed `value`; None if it is unknown."""
        record = self._found.get(id(value))
        term = None if record is None else record[1][reading]
        return term if isinstance(term, Reduction) else None

    def weight(self, factor: Any) -> Weight:
        """Return a factor or a divisor as a weight."""
        if not isinstance(factor, Tensor):
            return Weight.of(factor)
        self._compared.append(factor)
        return Weight.at(factor)

    def weight_of_labels(self, total: Tensor, target: Tensor, classes: Tensor | None, ignored: int) -> Weight:
        """Return the total weight of the labels of a loss."""
        self._compared += target, classes
        return Weight.of_labels(total, target, classes, ignored)

    def _watch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        value = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(value, Tensor):
            return
        read = _COMPUTED_READERS.get(func.overloadpacket)
        if read is not None:
            readings = {
                reading: read(self, func, args, kwargs, result, reading) for reading in (*READINGS, OF_EACH)
            }
            if any(term is not None for term in readings.values()):
                self._found[id(value)] = value, readings
                if self._is_computed_from_part(func, args, value):
                    self._partial.add(id(value))
                return
        if value.numel() == 1:
            self._computed[id(value)] = value

    def is_partial(self, value: Any) -> bool:
        """Return whether a reduced tensor may still have its samples."""
        return id(value) in self._partial

    def _is_computed_from_part(self, func: Any, args: Sequence[Any], value: Tensor) -> bool:
        if not value.dim():
            return False
        is_reduction = func.overloadpacket in (aten.mean, aten.sum, aten.nansum)
        is_first = is_reduction and id(args[0]) not in self._found
        operands = args[0] if isinstance(args[0], list | tuple) else args[:2]
        return is_first or any(map(self.is_partial, operands))

    def term(self, value: Any, reading: Reading) -> Term:
        """Return the reading of an operand."""
        if not isinstance(value, Tensor):
            return INDEPENDENT
        record = self._found.get(id(value))
        if record is not None:
            return record[1][reading]
        is_given = value.dim() == 0 and id(value) not in self._computed
        return INDEPENDENT if is_given else None


@contextmanager
def watching_reductions(*, when: bool) -> Iterator[ForwardReductions | None]:
    """Let `read_reduction` use the records of the mode that this yields."""
    mode = ForwardReductions() if when else None
    with bound(_current, mode):
        yield mode


def read_reduction(value: Tensor, reading: Reading) -> Reduction | None:
    """Return the reduction that computed `value`, from its graph or else from the current mode's records."""
    if value.grad_fn is not None:
        return reduction_of(value, reading)
    mode = _current.get()
    return None if mode is None else mode.of(value, reading)


def _argument(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - the operation's own declaration
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def _computed_labels(
    mode: ForwardReductions, func: Any, args: Any, kwargs: Any, result: Any, reading: Reading
) -> Term:
    if reading.each:
        return Reduction("sum")

    def argument(name: str) -> Any:
        return _argument(func, args, kwargs, name)

    target, classes, ignored = argument("target"), argument("weight"), argument("ignore_index")
    total = mode.weight_of_labels(result[1], target, classes, ignored)
    return by_labels(argument("reduction"), total, (target.data_ptr(), ignored, classes is None))


def _computed_elements(
    _: ForwardReductions, func: Any, args: Any, kwargs: Any, __: Any, reading: Reading
) -> Term:
    if reading.each:
        return Reduction("sum")
    return by_elements(_argument(func, args, kwargs, "reduction"), args[0].numel())


def _computed_mean(mode: ForwardReductions, func: Any, args: Any, _: Any, __: Any, reading: Reading) -> Term:
    inside = mode.term(args[0], reading)
    kind = "sum" if func.overloadpacket is aten.sum else "mean"
    if reading.each and (kind == "sum" or not isinstance(inside, Reduction)):
        return Reduction("sum")
    if reading.each:  # of stacked losses
        return Reduction("mean", Weight.of(args[0].numel()))
    # The operand may be made of scalars; else which of a sum and a mean is over samples is tried.
    if isinstance(inside, Reduction) and (
        inside.kind == kind or reading.inner or not mode.is_partial(args[0])
    ):
        return inside
    return Reduction("sum") if kind == "sum" else Reduction("mean", Weight.of(args[0].numel()))


def _computed_sum(mode: ForwardReductions, _: Any, args: Any, __: Any, ___: Any, reading: Reading) -> Term:
    operands = args[0] if isinstance(args[0], list | tuple) else args[:2]  # sizes are independent of samples
    return added([mode.term(operand, reading) for operand in operands], reading)


def _computed_product(
    mode: ForwardReductions, func: Any, args: Any, _: Any, __: Any, reading: Reading
) -> Term:
    first, second = (mode.term(operand, reading) for operand in args[:2])
    pairs = ((args[0], args[1]), (args[1], args[0]))
    if any(mode.is_partial(term) and isinstance(by, Tensor) and by.dim() for term, by in pairs):
        return None  # a number for each sample, of which a slice of one sample has one
    if func.overloadpacket is aten.div:
        return _by_number(mode, first, args[1], second, reading, divides=True)
    if isinstance(first, Reduction) == isinstance(second, Reduction):
        return multiplied([first, second])
    if isinstance(first, Reduction):
        return _by_number(mode, first, args[1], second, reading, divides=False)
    return _by_number(mode, second, args[0], first, reading, divides=False)


def _by_number(
    mode: ForwardReductions, term: Term, factor: Any, factors_term: Term, reading: Reading, *, divides: bool
) -> Term:
    """Return the reading of a term multiplied or divided by a number, which may depend on samples too."""
    if isinstance(factor, Tensor) and factor.numel() != 1:
        return None
    if not isinstance(term, Reduction):
        return multiplied([term, factors_term])
    applies = reading.divided if divides else reading.multiplied
    if factors_term is not INDEPENDENT and not applies:
        return None
    return (divided if divides else scaled)(term, mode.weight(factor), applies=applies)


_COMPUTED_READERS: Mapping[Any, Callable[..., Term]] = {
    **dict.fromkeys((aten.nll_loss_forward, aten.nll_loss2d_forward), _computed_labels),
    **{getattr(aten, name): _computed_elements for name in LOSSES_OF_ELEMENTS},
    aten.multilabel_margin_loss_forward: _computed_elements,
    **dict.fromkeys((aten.mean, aten.sum), _computed_mean),
    aten.nansum: lambda *_: Reduction("sum"),
    **{getattr(aten, name): _computed_sum for name in (*LINEAR, "detach")},
    **dict.fromkeys((aten.mul, aten.div), _computed_product),
}
