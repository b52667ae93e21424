"""Draws random numbers of a split call in the shape of the whole batch, and takes this rank's slice.

Every rank has the same random stream. A draw for the samples of a slice is made in the shape for the whole
batch, so that the stream advances equally on every rank, and each sample gets the numbers that it gets on one
worker::

    bernoulli_((local, 128))    becomes    bernoulli_((total, 128))[start : start + local]

A draw without a sample dimension, such as noise on weights, is not changed: it is the same on every rank.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samestep.autopilot.split.operations import OperationRecorder
from samestep.autopilot.split.sharded_autograd import BatchSplit, inverse, memory_order
from samestep.autopilot.split.slice_context import PackedRows, current_slice
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import leaves


@dataclass(frozen=True, slots=True)
class DrawType:
    """An operation, and the number of dimensions that it draws."""

    operation: str
    rank: int

    @classmethod
    def of(cls, func: Any, shape: Sequence[int]) -> "DrawType":
        """Return the type of a draw of this shape."""
        return cls(str(func.overloadpacket), len(shape))


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """One draw of an unsplit call: its shape, and its dimensions, outermost in memory first."""

    draw: DrawType
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedDraw:
    """One draw of a call, as the equivalence check has found it."""

    record: DrawRecord  # the draw of the unsplit call
    dim: int | None  # its sample dimension; None where the draw does not depend on the samples
    every: int = 1  # the number of positions along `dim` for each sample
    # the packed sequences whose rows dimension 0 may have, by their number in the call; none for other draws
    packings: tuple[int, ...] = ()

    def fits(
        self, draw: DrawType, shape: Sequence[int], samples: int, packings: Sequence[PackedRows] = ()
    ) -> bool:
        """Return whether a draw of a slice differs from this one in its number of samples only.

        `packings` are the packed sequences of the slice.
        """
        expected = list(self.record.shape)
        if self.packings:
            packing = self.packing_of(packings)
            expected[0] = -1 if packing is None else len(packing.rows)
        elif self.dim is not None:
            expected[self.dim] = self.every * samples
        return draw == self.record.draw and list(shape) == expected

    def packing_of(self, packings: Sequence[PackedRows]) -> PackedRows | None:
        """Return the packed sequences of the draw; None if it is unknown which they are."""
        candidates = [packings[place] for place in self.packings if place < len(packings)]
        is_known = candidates and all(torch.equal(packing.rows, candidates[0].rows) for packing in candidates)
        return candidates[0] if is_known else None


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The sample dimension of each random draw of a call, as the equivalence check has found it."""

    draws: tuple[PlannedDraw, ...]  # the draws of the unsplit call, in their order
    inner: bool  # whether samples vary faster than positions, if one dimension combines both

    def repeated(
        self, draw: DrawType, shape: Sequence[int], samples: int, packings: Sequence[PackedRows] = ()
    ) -> PlannedDraw | None:
        """Return the planned draw of this shape, whatever its number: a loop may draw more often than before.

        None if there is none, or if planned draws of this shape have other sample dimensions.
        """
        fitting = [plan for plan in self.draws if plan.fits(draw, shape, samples, packings)]
        agree = len({(plan.dim, plan.record.order, plan.packings) for plan in fitting}) == 1
        return fitting[0] if agree else None

    def kinds(self) -> tuple[bool, Set[Any]]:
        """Return what calls of all sizes have in common if they are split in the same way."""
        return self.inner, {(plan.record.draw, plan.dim, plan.packings) for plan in self.draws}

    def at(self, number: int, draw: DrawType) -> PlannedDraw | None:
        """Return the planned draw `number`, if it is of this type; its other sizes may differ."""
        planned = self.draws[number] if number < len(self.draws) else None
        return planned if planned is not None and planned.record.draw == draw else None


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """A draw for the whole batch, and the position of this rank's part in it."""

    shape: tuple[int, ...]  # the shape for the whole batch
    dim: int  # the dimension of the samples
    start: int  # the first sample of this rank
    length: int  # the number of samples of this rank
    every: int = 1  # the number of positions along `dim` for each sample
    inner: bool = False  # whether samples vary faster than positions
    # the dimensions of the whole batch's draw, outermost in memory first; None if unknown
    order: tuple[int, ...] | None = None
    rows: Tensor | None = None  # the rows of this rank, if they are those of packed sequences

    def part_of(self, whole: Tensor) -> Tensor:
        """Return this rank's part."""
        if self.rows is not None:
            return whole.index_select(self.dim, self.rows.to(whole.device))
        part = self._view(whole)
        return part.flatten(self.dim, self.dim + 1) if self.inner else part

    def set_part_of(self, whole: Tensor, part: Tensor) -> None:
        """Write this rank's part."""
        if self.rows is not None:
            whole.index_copy_(self.dim, self.rows.to(whole.device), part)
            return
        view = self._view(whole)
        view.copy_(part.reshape(view.shape))

    def _view(self, whole: Tensor) -> Tensor:
        """Return a view of this rank's part; with `inner`, positions are a dimension before the samples."""
        if not self.inner:
            return whole.narrow(self.dim, self.start * self.every, self.length * self.every)
        rows: Tensor = torch.unflatten(whole, self.dim, (self.every, -1))
        return rows.narrow(self.dim + 1, self.start, self.length)

    def laid_out(self, new: Callable[[Sequence[int]], Tensor], like: Tensor) -> Tensor:
        """Return the tensor that `new` creates in the whole shape, in the memory layout of `like`.

        Numbers are drawn in memory order. A dimension of size 1, as in a slice of one sample, has no
        definite position in that order, also where it has been flattened with another one; `order` is used
        then.
        """
        is_definite = self.order is None or (1 not in like.shape and self.length > 1)
        order = memory_order(like) if is_definite or self.order is None else list(self.order)
        return new([self.shape[dim] for dim in order]).permute(inverse(order))

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the whole shape, with the memory layout and dtype of `like`."""
        return self.laid_out(like.new_empty, like)

    def empty_with_gaps(self, like: Tensor) -> Tensor:
        """Return the same, with gaps between its elements if the whole of `like` has some."""
        if not _has_gaps(like, self.dim):
            return self.empty(like)
        return self.laid_out(lambda shape: like.new_empty([*shape, 2])[..., 0], like)


def _has_gaps(tensor: Tensor, dim: int) -> bool:
    """Return whether a tensor would not fill its memory with all samples along `dim`, as ``x[:, -1]``.

    A slice of the samples leaves a gap around them, which does not count.
    """
    filled: float = 1
    for place in reversed(memory_order(tensor)):
        size, stride = tensor.size(place), tensor.stride(place)
        if size == 1 and place != dim:
            continue
        if stride > filled or stride == 0:
            return True
        filled = math.inf if place == dim else stride * size
    return False


def sample_dim(shape: Sequence[int], samples: int) -> tuple[int, int] | None:
    """Return the sample dimension, and the number of positions along it for each sample; None if none fits.

    It is the first dimension of size `samples`, or else dimension 0 if its size is a multiple of `samples`:
    samples are then flattened together with another dimension.
    """
    dim = next((dim for dim, size in enumerate(shape) if size == samples), None)
    if dim is not None:
        return dim, 1
    return (0, shape[0] // samples) if shape and samples and shape[0] % samples == 0 else None


aten = torch.ops.aten
_BITS = 53  # random bits that torch compares with a probability: those of a double
_TRIED = (7, 33, (0.1, 0.5, 0.8, 1.0))
"""Seed, elements and probabilities of a comparison with torch: arbitrary, with more elements than a vector
register."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - no public spelling
FUSED_ATTENTION = (
    "attention draws its dropout in one kernel; choose the math kernel, by "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or attn_implementation='eager' of Transformers"
)
"""The reason for a draw of attention on a GPU, which has no mask whose part could be taken."""
Draw: TypeAlias = Callable[[BatchDraw, Any, Sequence[Any], Mapping[str, Any]], Any]


class _DrawMode(OperationRecorder):  # type: ignore[no-untyped-call]
    """A context that executes each random draw by `_draw`, and records all operations."""

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not _is_seeded(func):
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(_COMPOSITE):  # it draws by others; only in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError


class DrawRecorder(_DrawMode):  # type: ignore[no-untyped-call]
    """A context that records the shape of each random draw of an unsplit call."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[DrawRecord] = []

    def _draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, has_drawn = _executed(func, args, kwargs)
        if not has_drawn:
            return result
        value = _first(result)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        order = tuple(memory_order(value)) if isinstance(value, Tensor) else ()
        self.shapes.append(DrawRecord(DrawType.of(func, shape), shape, order))
        return result


class SplitDraws(_DrawMode):  # type: ignore[no-untyped-call]
    """A context that draws for more samples than requested, and returns a part of the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        """Draws whose part for a slice is unknown, such as those that depend on values."""
        self.number = 0
        """The number of draws so far, including the current one."""

    def _draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        draw = _DRAWS.get(func.overloadpacket)
        if draw is not None:
            self.number += 1
            wide = self.batch_draw(func, _shape_of(args, kwargs))
            if wide is None:
                return func(*args, **kwargs)
            result = draw(wide, func, args, kwargs)
            self.follow(tensor for _, tensor in leaves(result))
            return result
        result, has_drawn = _executed(func, args, kwargs)
        self.number += has_drawn
        # A call that permutes its samples cannot be split.
        if has_drawn and func.overloadpacket is not aten.randperm:
            value = _first(result)
            shape = tuple(value.shape) if isinstance(value, Tensor) else ()
            if not self.is_of_no_sample(func, shape):
                self.unknown.add(_name(func))
        return result

    def is_of_no_sample(self, func: Any, shape: Sequence[int]) -> bool:  # noqa: ARG002
        """Return whether a draw of this shape is known to be equal for all slices."""
        return False

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for more samples; None if no dimension is the sample dimension."""
        raise NotImplementedError


class GlobalDraws(SplitDraws):  # type: ignore[no-untyped-call]
    """A context that draws for the whole batch, and returns the part of this rank's slice.

    Without a plan, sample dimensions are inferred from sizes. `number` counts the earlier draws of the call.
    """

    def __init__(self, split: BatchSplit, plan: DrawPlan | None = None, number: int = 0) -> None:
        super().__init__()
        self._split, self._plan = split, plan
        self.number = number
        self._is_numbered = False
        """Whether a draw was found in the plan by its number alone."""

    @property
    def _packings(self) -> Sequence[PackedRows]:
        """The packed sequences of the slice so far."""
        context = current_slice.get()
        return () if context is None or context.packings is None else context.packings

    def plan(self) -> DrawPlan | None:
        """Return the sample dimension of each draw; None if it is inferred from the sizes."""
        return self._plan

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for the whole batch; None if no dimension is the sample dimension."""
        local = self._split.local
        if self._plan is None:
            place = sample_dim(shape, local)
            return None if place is None else self._wide(shape, *place)
        draw = DrawType.of(func, shape)
        planned = self._plan.repeated(draw, shape, local, self._packings)
        if planned is None:
            planned = self._plan.at(self.number - 1, draw)
            self._is_numbered = True
        if planned is not None and planned.packings:
            packing = planned.packing_of(self._packings)
            if packing is not None and planned.fits(draw, shape, local, self._packings):
                return _of_packed(shape, packing, planned.record.order)
            planned = None
        if planned is None or (planned.dim is not None and shape[planned.dim] % local):
            self.unknown.add(f"{draw.operation} in another shape than in the check, {list(shape)}")
            return None
        if planned.dim is None:
            return None
        every, order = shape[planned.dim] // local, planned.record.order
        return self._wide(shape, planned.dim, every, inner=self._plan.inner, order=order)

    def is_of_no_sample(self, func: Any, shape: Sequence[int]) -> bool:
        """Return whether the equivalence check has found draws of this shape to be equal for all slices."""
        if self._plan is None:
            return False
        planned = self._plan.repeated(DrawType.of(func, shape), shape, self._split.local, self._packings)
        return planned is not None and planned.dim is None

    def end(self) -> None:
        """Check, after the call, that a draw that was found by its number had this number."""
        if self._is_numbered and self._plan is not None and self.number != len(self._plan.draws):
            self.unknown.add(f"{self.number} draws, and {len(self._plan.draws)} in the check")

    def _wide(
        self,
        shape: Sequence[int],
        dim: int,
        every: int,
        *,
        inner: bool = False,
        order: tuple[int, ...] | None = None,
    ) -> BatchDraw:
        """Return the draw for the whole batch, given the shape of a slice; see `BatchDraw`."""
        whole = (*shape[:dim], self._split.total * every, *shape[dim + 1 :])
        start, local = self._split.start, self._split.local
        return BatchDraw(whole, dim, start, local, every, inner and every > 1, order)


class InferredDraws(GlobalDraws):  # type: ignore[no-untyped-call]
    """A context that infers the sample dimension of each draw from the shape of the unsplit call's draw.

    With `inner`, samples vary faster than positions where one dimension combines both.
    """

    def __init__(self, split: BatchSplit, shapes: Sequence[DrawRecord], *, inner: bool = False) -> None:
        super().__init__(split)
        self._shapes, self._inner = shapes, inner
        self._dims: dict[int, int | None] = {}
        """The sample dimension, by the number of the draw."""
        self._packed: dict[int, tuple[int, ...]] = {}
        """The packed sequences for whose rows numbers may be drawn, by the number of the draw."""
        self.has_flattened = False
        """Whether a dimension combines samples and positions."""

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for the whole batch; None if no dimension is the sample dimension."""
        number = self.number - 1
        draw = DrawType.of(func, shape)
        known = self._shapes[number] if number < len(self._shapes) else None
        if known is None or known.draw != draw:
            self.unknown.add(f"{draw.operation} in another order than in the unsplit call")
            return None
        differing = [dim for dim, size in enumerate(shape) if size != known.shape[dim]]
        if not differing:
            self._dims[number] = None
            return None
        dim = differing[0]
        sizes = shape[0], known.shape[0]
        places = tuple(
            place
            for place, packing in enumerate(self._packings)
            if (len(packing.rows), packing.total) == sizes
        )
        if differing == [0] and places:
            self._dims[number], self._packed[number] = 0, places
            packing = PlannedDraw(known, 0, packings=places).packing_of(self._packings)
            if packing is not None:
                return _of_packed(shape, packing, known.order)
            self.unknown.add(f"{draw.operation} for one of several packed sequences of equal sizes")
            return None
        if len(differing) > 1 or shape[dim] * self._split.total != known.shape[dim] * self._split.local:
            whole = list(known.shape)
            self.unknown.add(f"{draw.operation} of {list(shape)}, and {whole} in the unsplit call")
            return None
        self._dims[number] = dim
        every = shape[dim] // self._split.local
        self.has_flattened = self.has_flattened or every > 1
        return self._wide(shape, dim, every, inner=self._inner, order=known.order)

    def is_of_no_sample(self, func: Any, shape: Sequence[int]) -> bool:
        """Return whether the unsplit call's draw has this shape, too."""
        known = self._shapes[self.number - 1] if self.number <= len(self._shapes) else None
        return known is not None and (known.draw, known.shape) == (DrawType.of(func, shape), tuple(shape))

    def plan(self) -> DrawPlan:
        """Return the sample dimensions found."""
        total = self._split.total
        draws = []
        for number, record in enumerate(self._shapes):
            dim, packings = self._dims.get(number), self._packed.get(number, ())
            every = 1 if dim is None or packings else record.shape[dim] // total
            draws.append(PlannedDraw(record, dim, every, packings))
        return DrawPlan(tuple(draws), self._inner)


def _of_packed(shape: Sequence[int], packing: PackedRows, order: tuple[int, ...]) -> BatchDraw:
    """Return the draw for the packed sequences of the whole batch, given the shape of that for a slice."""
    whole = packing.total, *shape[1:]
    return BatchDraw(whole, 0, 0, shape[0], order=order, rows=packing.rows)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _executed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the result of an operation that may draw, and whether it has drawn.

    Attention without dropout draws no numbers, and torch may choose its kernel otherwise for the slices: by
    whether gradients are recorded, or by a size.
    """
    if func.overloadpacket in _DRAWS or func.overloadpacket is aten.randperm:
        return func(*args, **kwargs), True
    device = next((argument.device for argument in args if isinstance(argument, Tensor)), torch.device("cpu"))
    before = RngState.now(device)
    result = func(*args, **kwargs)
    return result, not before.same(RngState.now(device))


def _name(func: Any) -> str:
    """Return the name of a draw whose part for a slice is unknown, or how to avoid it."""
    is_attention = func.namespace == "aten" and "attention" in func.__name__
    return FUSED_ATTENTION if is_attention else str(func.overloadpacket)


@functools.cache
def _is_seeded(func: Any) -> bool:
    """Return whether an operation draws random numbers; kept, as `tags` is a new list each time."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _shape_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[int]:
    """Return the shape of a draw: that of the first tensor among its arguments, or its argument `size`."""
    tensor = next((argument for argument in args if isinstance(argument, Tensor)), None)
    if tensor is not None:
        return tensor.shape
    size: Sequence[int] = kwargs["size"] if "size" in kwargs else args[_size_at(args)]
    return size


def _size_at(args: Sequence[Any]) -> int:
    return next(place for place, argument in enumerate(args) if isinstance(argument, list | tuple))


def _fill(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``x.uniform_()`` and the like, which overwrite `x`; probabilities may be one per element."""
    target, *rest = args
    whole = wide.empty(target)
    func(whole, *(_among_others(argument, target.shape, wide) for argument in rest), **kwargs)
    target.copy_(wide.part_of(whole))
    return target


def _bernoulli(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``x.bernoulli_(p)``, the mask of dropout on the CPU, in half the time of ``bernoulli_``.

    For each element torch draws 64 bits, and compares the low 53 bits, as a fraction, with the probability.
    This draws the bits of all elements, and compares those of this rank's part. torch does not document
    this: `matches_torch` tests it once, and ``bernoulli_`` is used if it fails.
    """
    target, *rest = args
    probability = rest[0] if rest else kwargs.get("p", 0.5)
    if target.device.type != "cpu" or isinstance(probability, Tensor) or not matches_torch():
        return _fill(wide, func, args, kwargs)
    whole = wide.laid_out(functools.partial(random_bits, generator=kwargs.get("generator")), target)
    target.copy_(bernoulli_mask(wide.part_of(whole), probability))
    return target


def random_bits(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Return the random bits of a mask: an int64 tensor of shape ``shape``."""
    return torch.empty(shape, dtype=torch.int64, device="cpu").random_(-(2**63), None, generator=generator)


def bernoulli_mask(bits: Tensor, probability: float) -> Tensor:
    """Return the mask with these random bits: a bool tensor, true with the given probability."""
    return bits.bitwise_and((1 << _BITS) - 1) < math.ceil(math.ldexp(probability, _BITS))


@functools.cache
def matches_torch() -> bool:
    """Return whether masks and the generator after them equal those of torch."""
    seed, count, probabilities = _TRIED
    generator, torchs_generator = (torch.Generator().manual_seed(seed) for _ in range(2))
    equal = all(
        torch.equal(
            bernoulli_mask(random_bits((count,), generator), probability),
            torch.empty(count, device="cpu").bernoulli_(probability, generator=torchs_generator).bool(),
        )
        for probability in probabilities
    )
    return equal and torch.equal(generator.get_state(), torchs_generator.get_state())


def _like(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``rand_like(x)`` and the like, which use only the shape and dtype of `x`."""
    model, *rest = args
    return wide.part_of(func(wide.empty(model), *rest, **kwargs)).clone()


def _of_size(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``randn(shape)`` and the like."""
    shape = list(wide.shape)
    if "size" in kwargs:
        return wide.part_of(func(*args, **{**kwargs, "size": shape})).clone()
    here = _size_at(args)
    return wide.part_of(func(*args[:here], shape, *args[here + 1 :], **kwargs)).clone()


def _of_values(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``bernoulli(p)`` and ``normal(mean, std)``; the values do not affect the number of draws."""
    if not any(isinstance(argument, Tensor) for argument in args):
        return _of_size(wide, func, args, kwargs)
    shape = _shape_of(args, kwargs)
    return wide.part_of(func(*(_among_others(argument, shape, wide) for argument in args), **kwargs)).clone()


def _native_dropout(wide: BatchDraw, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for dropout in one kernel, as on accelerators, which returns the values and the mask.

    Where the values have gaps, CUDA's kernel does not draw for several elements at once, and each element
    gets another number.
    """
    values, probability, train = args
    if not train:
        return func(*args, **kwargs)
    _, kept = func(wide.empty_with_gaps(values), probability, train, **kwargs)
    kept = wide.part_of(kept).clone()
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return values * kept * scale, kept


def _among_others(value: Any, shape: Sequence[int], wide: BatchDraw) -> Any:
    """Return a tensor of the whole shape with `value` in this rank's part; return numbers unchanged."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    whole = wide.empty(value).fill_(0.5)
    wide.set_part_of(whole, value.expand(list(shape)))
    return whole


_DRAWS: Mapping[Any, Draw] = {
    **dict.fromkeys(
        (
            aten.uniform_,
            aten.normal_,
            aten.exponential_,
            aten.log_normal_,
            aten.cauchy_,
            aten.geometric_,
            aten.random_,
        ),
        _fill,
    ),
    aten.bernoulli_: _bernoulli,
    **dict.fromkeys((aten.rand_like, aten.randn_like, aten.randint_like), _like),
    **dict.fromkeys((aten.rand, aten.randn, aten.randint), _of_size),
    **dict.fromkeys((aten.bernoulli, aten.normal), _of_values),
    aten.native_dropout: _native_dropout,
}
