"""Finds the values that operations use as positions, and checks that none is out of range.

An index beyond a table raises an error on a CPU. On a device a kernel asserts, and no operation of the
process works any more. So an equivalence check computes each call under `CheckedPositions`, which compares
positions with their ranges before a kernel does. `PositionTrace` finds the inputs of a call that are used as
positions, and those that reach operations of other libraries, whose ranges are unknown.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.hooks.tensor_tree import Path, leaves

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Positions:
    """The values of an operand that an operation wants within a range."""

    values: Tensor
    least: float
    end: float  # the lowest value that is too large
    ignored: int | None = None  # a value that the operation skips: an ignored label


_Reader: TypeAlias = Callable[..., Iterator[Positions]]


def positions_in(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Positions]:
    """Return the positions that an operation of torch uses; none for most operations."""
    reader = _READERS.get(func.overloadpacket)
    if reader is None:
        return []
    operands = {
        argument.name: args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(func._schema.arguments)  # noqa: SLF001 - the operation's declaration
    }
    return [positions for positions in reader(operands) if positions.values.numel()]


def _in_table(table: str) -> _Reader:
    def read(operands: Mapping[str, Any]) -> Iterator[Positions]:
        yield Positions(operands["indices"], 0, operands[table].size(0))

    return read


def _along(*, is_signed: bool = False) -> _Reader:
    """Read an index along the dimension `dim`; a signed one may count from the end."""

    def read(operands: Mapping[str, Any]) -> Iterator[Positions]:
        size = operands["self"].size(operands["dim"]) if operands["self"].dim() else 1
        yield Positions(operands["index"], -size if is_signed else 0, size)

    return read


def _of_elements(operands: Mapping[str, Any]) -> Iterator[Positions]:
    size = operands["self"].numel()
    yield Positions(operands["index"], -size, size)


def _of_dimensions(operands: Mapping[str, Any]) -> Iterator[Positions]:
    """Read the tensors in ``x[a, :, b]``; masks are compared with sizes on the host."""
    dim = 0
    for index in operands["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        if index is not None and dim < operands["self"].dim():
            size = operands["self"].size(dim)
            yield Positions(index, -size, size)
        dim += 1


def _labels(operands: Mapping[str, Any]) -> Iterator[Positions]:
    scores = operands["self"]
    classes = scores.size(1 if scores.dim() > 1 else 0)
    yield Positions(operands["target"], 0, classes, operands["ignore_index"])


def _margin_labels(*, is_padded: bool) -> _Reader:
    def read(operands: Mapping[str, Any]) -> Iterator[Positions]:
        yield Positions(operands["target"], -1 if is_padded else 0, operands["self"].size(-1))

    return read


def _of_rows(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["indices"], 0, operands["weight"].size(0))
    yield Positions(operands["offsets"], 0, operands["indices"].numel() + 1)


def _of_places(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["indices"], 0, math.prod(operands["output_size"]))


def _of_sequences(operands: Mapping[str, Any]) -> Iterator[Positions]:
    """Read the labels of a CTC loss: rows that are padded to one length, or all in one row."""
    lengths = operands["target_lengths"]
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    targets, classes = operands["targets"], operands["log_probs"].size(-1)
    rows = zip(targets, counts, strict=True) if targets.dim() > 1 else [(targets, sum(counts))]
    yield from (Positions(row[:count], 0, classes) for row, count in rows)


def _repeats(operands: Mapping[str, Any]) -> Iterator[Positions]:
    repeats, total = operands["repeats"], operands["output_size"]
    yield Positions(repeats, 0, math.inf)
    if total is not None:
        yield Positions(repeats.sum(), total, total + 1)


def _weights_of_draws(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["self"], 0, math.inf)
    yield Positions(operands["self"].sum(-1), _ABOVE_ZERO, math.inf)


def _not_negative(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["self"], 0, math.inf)


def _probabilities(operands: Mapping[str, Any]) -> Iterator[Positions]:
    names = [name for name in ("p", "target") if isinstance(operands.get(name), Tensor)]
    if "p" not in operands:
        names.append("self")
    yield from (Positions(operands[name], 0, _ABOVE_ONE) for name in names)


def _number_of_elements(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["mask"].sum(), 0, operands["source"].numel() + 1)


def _asserted(operands: Mapping[str, Any]) -> Iterator[Positions]:
    yield Positions(operands["self"] != 0, 1, 2)


_ABOVE_ZERO, _ABOVE_ONE = math.ulp(0.0), math.nextafter(1.0, 2.0)
_READERS: Mapping[Any, _Reader] = {
    aten.embedding: _in_table("weight"),
    aten.embedding_renorm_: _in_table("self"),
    **dict.fromkeys((aten._embedding_bag, aten._embedding_bag_forward_only), _of_rows),  # noqa: SLF001
    **dict.fromkeys((aten.index, aten.index_put, aten.index_put_), _of_dimensions),
    **dict.fromkeys((aten._unsafe_index, aten._unsafe_index_put), _of_dimensions),  # noqa: SLF001
    aten._index_put_impl_: _of_dimensions,
    **dict.fromkeys((aten.index_select, aten.index_add, aten.index_add_, aten.index_copy), _along()),
    **dict.fromkeys((aten.index_copy_, aten.index_reduce, aten.index_reduce_), _along()),
    **dict.fromkeys((aten.index_fill, aten.index_fill_), _along(is_signed=True)),
    **dict.fromkeys(
        (aten.gather, aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_), _along()
    ),
    **dict.fromkeys((aten.scatter_reduce, aten.scatter_reduce_), _along()),
    **dict.fromkeys((aten.take, aten.put, aten.put_), _of_elements),
    **dict.fromkeys((aten.nll_loss_forward, aten.nll_loss2d_forward), _labels),
    aten.multi_margin_loss: _margin_labels(is_padded=False),
    aten.multilabel_margin_loss_forward: _margin_labels(is_padded=True),
    **dict.fromkeys((aten.max_unpool2d, aten.max_unpool3d), _of_places),
    aten._ctc_loss: _of_sequences,  # noqa: SLF001
    aten.bincount: _not_negative,
    aten.repeat_interleave: _repeats,
    aten.poisson: _not_negative,
    aten.multinomial: _weights_of_draws,
    **dict.fromkeys((aten.bernoulli, aten.bernoulli_, aten.binary_cross_entropy), _probabilities),
    **dict.fromkeys((aten.masked_scatter, aten.masked_scatter_), _number_of_elements),
    **dict.fromkeys((aten._assert_async, aten._functional_assert_async), _asserted),  # noqa: SLF001
}
"""The operations of torch whose kernels assert or access memory out of bounds, with their operands."""
_FROM_TABLE = frozenset(
    {aten.embedding, aten.index, aten._unsafe_index, aten.index_select, aten.gather, aten.take}  # noqa: SLF001
)
"""The operations whose results are values of their first operand, which the others select."""


class _Decomposed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that observes the parts of operations that torch composes of others.

    In inference mode torch passes such operations as they are: a cross entropy, and not its lookup of labels.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation, or the operations that it is composed of."""
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one operation that is not composed of others."""
        raise NotImplementedError


class CheckedPositions(_Decomposed):  # type: ignore[no-untyped-call]
    """A context in which a position out of range raises an `IndexError` before a kernel gets it."""

    precision: torch.dtype | None = None
    """The precision of all results of the context; None if it does not change them."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        """The addresses of the storages that were written to, also where no value has changed."""

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for positions in positions_in(func, args, kwargs):
            _check(func, positions)
        if func._schema.is_mutable and func.overloadpacket not in _OF_FORM:  # noqa: SLF001 - no public spelling
            self.written.update(address_of(tensor) for tensor in _written_by(func, args, kwargs))
        return func(*args, **kwargs)


_OF_FORM = frozenset(
    {aten.detach_, aten.t_, aten.transpose_, aten.squeeze_, aten.unsqueeze_, aten.as_strided_}
)
"""The operations in place that write no values."""


def _written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the operands that an operation writes to."""
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - no public spelling
        if argument.is_write:
            operand = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (tensor for _, tensor in leaves((operand,)))


def _check(func: Any, positions: Positions) -> None:
    values = positions.values.detach()
    if positions.ignored is not None:
        values = values[values != positions.ignored]
    if not values.numel():
        return
    least, most = (float(value) for value in torch.aminmax(values.double()))
    if not (least >= positions.least and most < positions.end):  # a NaN fails both
        raise IndexError(
            f"{func.overloadpacket} gets values from {least:g} to {most:g}, and the range is "
            f"{positions.least:g} to {positions.end:g}"
        )


@dataclass(frozen=True, slots=True)
class InputUses:
    """The uses of a call's inputs as positions."""

    indices: frozenset[Path] = frozenset()
    """The inputs whose values select rows or elements."""
    unchecked: frozenset[Path] = frozenset()
    """The inputs that reach an operation that is not torch's, so that no range is known."""
    ignored: Mapping[Path, frozenset[int]] = field(default_factory=dict)
    """The inputs that are labels of a loss, with the values that the loss ignores."""


class PositionTrace(_Decomposed):  # type: ignore[no-untyped-call]
    """A context that follows the integer and boolean inputs of a call to operations that use positions.

    It follows memory rather than tensors, since a view may be written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._indices: set[Path] = set()
        self._unchecked: set[Path] = set()
        self._ignored: dict[Path, set[int]] = {}
        self._origins: dict[int, tuple[StorageWeakRef, set[Path]]] = {}
        """The inputs from which the values of a storage are computed; the reference keeps its address."""

    @property
    def uses(self) -> InputUses:
        """The uses of the inputs that were followed."""
        ignored = {path: frozenset(values) for path, values in self._ignored.items()}
        return InputUses(frozenset(self._indices), frozenset(self._unchecked), ignored)

    def follow(self, tensors: Iterable[tuple[Path, Tensor]]) -> None:
        """Follow the inputs of a call that are integers or booleans."""
        for path, tensor in tensors:
            if is_integer(tensor):
                self._add(tensor, {path})

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._record(func, args, kwargs)
        result = func(*args, **kwargs)
        tables = [args[0]] if func.overloadpacket in _FROM_TABLE and args else (args, kwargs)
        origins = set().union(*(self._of(tensor) for _, tensor in leaves(tables)))
        if origins:
            for _, tensor in leaves((result,)):
                self._add(tensor, origins)
        return result

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for positions in positions_in(func, args, kwargs):
            for path in self._of(positions.values):
                if positions.ignored is None:
                    self._indices.add(path)
                else:
                    self._ignored.setdefault(path, set()).add(positions.ignored)
        if func.namespace not in _OF_TORCH:
            for _, tensor in leaves((args, dict(kwargs))):
                if is_integer(tensor):
                    self._unchecked |= self._of(tensor)

    def _of(self, tensor: Tensor) -> set[Path]:
        known = self._origins.get(address_of(tensor))
        return set() if known is None else known[1]

    def _add(self, tensor: Tensor, paths: set[Path]) -> None:
        address = address_of(tensor)
        if address in self._origins:
            self._origins[address][1].update(paths)
        elif address:
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._origins[address] = reference, set(paths)


_OF_TORCH = frozenset({"aten", "prim", "prims"})


def is_integer(tensor: Tensor) -> bool:
    """Return whether a tensor holds integers or booleans."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage object; 0 for a tensor without one, such as a sparse one."""
    if tensor.layout != torch.strided:
        return 0
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - unique while a weak reference exists
    return address
