"""Reads the reductions of scalars while they are computed, for scalars without an autograd graph.

Losses in evaluation, accuracies and detached values have no graph. This mode observes the operations of a
call, and records for each reduced tensor what `samestep.autopilot.split.loss_reduction` reads from a
graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.autopilot.split.loss_reduction import (
    INDEPENDENT,
    LINEAR,
    LOSSES_OF_ELEMENTS,
    OF_EACH,
    READINGS,
    Reading,
    Reduction,
    Term,
    Weight,
    added,
    by_elements,
    by_labels,
    divided,
    multiplied,
    reduction_of,
    scaled,
)
from samestep.base.context_values import bound

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
        read = _READERS.get(func.overloadpacket)
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
        is_first = func.overloadpacket in (aten.mean, aten.sum) and id(args[0]) not in self._found
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


def _labels(
    mode: ForwardReductions, func: Any, args: Any, kwargs: Any, result: Any, reading: Reading
) -> Term:
    if reading.each:
        return Reduction("sum")

    def argument(name: str) -> Any:
        return _argument(func, args, kwargs, name)

    target, classes, ignored = argument("target"), argument("weight"), argument("ignore_index")
    total = mode.weight_of_labels(result[1], target, classes, ignored)
    return by_labels(argument("reduction"), total, (target.data_ptr(), ignored, classes is None))


def _elements(_: ForwardReductions, func: Any, args: Any, kwargs: Any, __: Any, reading: Reading) -> Term:
    if reading.each:
        return Reduction("sum")
    return by_elements(_argument(func, args, kwargs, "reduction"), args[0].numel())


def _reduced(mode: ForwardReductions, func: Any, args: Any, _: Any, __: Any, reading: Reading) -> Term:
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


def _linear(mode: ForwardReductions, _: Any, args: Any, __: Any, ___: Any, reading: Reading) -> Term:
    operands = args[0] if isinstance(args[0], list | tuple) else args[:2]  # sizes are independent of samples
    return added([mode.term(operand, reading) for operand in operands], reading)


def _product(mode: ForwardReductions, func: Any, args: Any, _: Any, __: Any, reading: Reading) -> Term:
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


_READERS: Mapping[Any, Callable[..., Term]] = {
    **dict.fromkeys((aten.nll_loss_forward, aten.nll_loss2d_forward), _labels),
    **{getattr(aten, name): _elements for name in LOSSES_OF_ELEMENTS},
    **dict.fromkeys((aten.mean, aten.sum), _reduced),
    **{getattr(aten, name): _linear for name in (*LINEAR, "detach")},
    **dict.fromkeys((aten.mul, aten.div), _product),
}
