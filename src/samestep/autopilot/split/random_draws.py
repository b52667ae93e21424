"""Draws random numbers of a split call in the shape of the whole batch, and takes this rank's slice.

Every rank has the same random stream. A draw for the samples of a slice is made in the shape for the whole
batch, so that the stream advances equally on every rank, and each sample gets the numbers that it gets on one
worker::

    bernoulli_((local, 128))    becomes    bernoulli_((total, 128))[start : start + local]

A draw without a sample dimension, such as noise on weights, is not changed: it is the same on every rank.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.autopilot.split.bernoulli import bernoulli_mask, matches_torch, random_bits
from samestep.autopilot.split.draw_plans import DrawPlan, DrawRecord, DrawType
from samestep.autopilot.split.sharded_autograd import BatchSplit, inverse, memory_order
from samestep.hooks.random_draws import RngState

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - no public spelling
Draw: TypeAlias = Callable[["SplitDraws", Any, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """A draw for the whole batch, and the position of this rank's part in it.

    Args:
        shape: the shape for the whole batch.
        dim: the dimension of the samples.
        start: the first sample of this rank.
        length: the number of samples of this rank.
        every: the number of positions along `dim` for each sample.
        inner: whether samples vary faster than positions.
        order: the dimensions of the whole batch's draw, outermost in memory first; None if unknown.
    """

    shape: tuple[int, ...]
    dim: int
    start: int
    length: int
    every: int = 1
    inner: bool = False
    order: tuple[int, ...] | None = None

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part."""
        if not self.inner:
            return whole.narrow(self.dim, self.start * self.every, self.length * self.every)
        rows: Tensor = torch.unflatten(whole, self.dim, (self.every, -1))
        return rows.narrow(self.dim + 1, self.start, self.length).flatten(self.dim, self.dim + 1)

    def set_own(self, whole: Tensor, part: Tensor) -> None:
        """Write this rank's part."""
        if not self.inner:
            self.own(whole).copy_(part)
            return
        rows: Tensor = torch.unflatten(whole, self.dim, (self.every, -1))
        own: Tensor = torch.unflatten(part, self.dim, (self.every, self.length))
        rows.narrow(self.dim + 1, self.start, self.length).copy_(own)

    def laid_out(self, new: Callable[[Sequence[int]], Tensor], like: Tensor) -> Tensor:
        """Return the tensor that `new` creates in the whole shape, in the memory layout of `like`.

        Numbers are drawn in memory order. A dimension of size 1, as in a slice of one sample, has no
        definite position in that order; `order` is used then.
        """
        is_definite = self.order is None or 1 not in like.shape
        order = memory_order(like) if is_definite or self.order is None else list(self.order)
        return new([self.shape[dim] for dim in order]).permute(inverse(order))

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the whole shape, with the memory layout and dtype of `like`."""
        return self.laid_out(like.new_empty, like)


class DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records the shape of each random draw of an unsplit call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[DrawRecord] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if not _is_seeded(func):
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        value = result[0] if isinstance(result, tuple) else result
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        order = tuple(memory_order(value)) if isinstance(value, Tensor) else ()
        self.shapes.append(DrawRecord(_named(func, shape), shape, order))
        return result


class SplitDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that draws for more samples than requested, and returns a part of the numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown: set[str] = set()
        """Draws whose part for a slice is unknown, such as those that depend on values."""
        self.number = 0
        """The number of draws so far, including the current one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if not _is_seeded(func):
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        self.number += 1
        draw = _DRAWS.get(func.overloadpacket)
        if draw is not None:
            return draw(self, func, args, kwargs)
        before = RngState.now(_device(args))
        result = func(*args, **kwargs)
        if not before.same(RngState.now(_device(args))):  # attention without dropout draws no numbers
            self.unknown.add(str(func.overloadpacket))
        return result

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for more samples; None if no dimension is the sample dimension."""
        raise NotImplementedError


class GlobalDraws(SplitDraws):  # type: ignore[no-untyped-call]
    """A context that draws for the whole batch, and returns the part of this rank's slice.

    Args:
        split: the slices of the batch.
        plan: the sample dimension of each draw; None to infer it from the sizes.
        number: the number of draws of the call before this context is entered.
    """

    def __init__(self, split: BatchSplit, plan: DrawPlan | None = None, number: int = 0) -> None:
        super().__init__()
        self._split, self.known = split, plan
        self.number = number

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for the whole batch; None if no dimension is the sample dimension."""
        split = self._split
        place = sample_dim(shape, split.local)
        inner, order = False, None
        if self.known is not None:
            draw = _named(func, shape)
            found = self.known.find(draw, self.number - 1)
            dim, order = (_only_dim(shape, split.local), None) if found is None else found
            if (found is None and dim is None) or (dim is not None and shape[dim] % split.local):
                self.unknown.add(f"{draw.operation} in another shape than in the check, {list(shape)}")
                return None
            place = None if dim is None else (dim, shape[dim] // split.local)
            inner = self.known.inner
        return None if place is None else batch_draw_for(shape, place, split, inner=inner, order=order)


class InferredDraws(GlobalDraws):  # type: ignore[no-untyped-call]
    """A context that infers the sample dimension of each draw from the shape of the unsplit call's draw.

    Args:
        split: the slices of the batch.
        shapes: the draws of the unsplit call.
        inner: whether samples vary faster than positions, if one dimension combines both.
    """

    def __init__(self, split: BatchSplit, shapes: Sequence[DrawRecord], *, inner: bool = False) -> None:
        super().__init__(split)
        self._shapes, self._inner = shapes, inner
        self._dims: dict[int, int | None] = {}
        """The sample dimension, by the number of the draw."""
        self.has_flattened = False
        """Whether a dimension combines samples and positions."""

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:
        """Return the draw for the whole batch; None if no dimension is the sample dimension."""
        number = self.number - 1
        draw = _named(func, shape)
        known = self._shapes[number] if number < len(self._shapes) else None
        if known is None or known.draw != draw:
            self.unknown.add(f"{draw.operation} in another order than in the unsplit call")
            return None
        differing = [dim for dim, size in enumerate(shape) if size != known.shape[dim]]
        if not differing:
            self._dims[number] = None
            return None
        dim = differing[0]
        if len(differing) > 1 or shape[dim] * self._split.total != known.shape[dim] * self._split.local:
            whole = list(known.shape)
            self.unknown.add(f"{draw.operation} of {list(shape)}, and {whole} in the unsplit call")
            return None
        self._dims[number] = dim
        every = shape[dim] // self._split.local
        self.has_flattened = self.has_flattened or every > 1
        return batch_draw_for(shape, (dim, every), self._split, inner=self._inner, order=known.order)

    def plan(self) -> DrawPlan:
        """Return the sample dimensions found."""
        draws = tuple(one.draw for one in self._shapes)
        dims = tuple(self._dims.get(number) for number in range(len(draws)))
        return DrawPlan(draws, dims, tuple(one.order for one in self._shapes), self._inner)


def batch_draw_for(
    shape: Sequence[int],
    place: tuple[int, int],
    split: BatchSplit,
    *,
    inner: bool,
    order: tuple[int, ...] | None = None,
) -> BatchDraw:
    """Return the draw for the whole batch, given the shape of a slice.

    Args:
        shape: the shape for the slice.
        place: the sample dimension, and the number of positions along it for each sample.
        split: the slices of the batch.
        inner: whether samples vary faster than positions.
        order: the dimensions of the whole batch's draw, outermost in memory first; None if unknown.
    """
    dim, every = place
    whole = (*shape[:dim], split.total * every, *shape[dim + 1 :])
    return BatchDraw(whole, dim, split.start, split.local, every, inner and every > 1, order)


def _device(args: Sequence[Any]) -> torch.device:
    return next((one.device for one in args if isinstance(one, Tensor)), torch.device("cpu"))


def _named(func: Any, shape: Sequence[int]) -> DrawType:
    return DrawType(str(func.overloadpacket), len(shape))


@functools.cache
def _is_seeded(func: Any) -> bool:
    """Return whether an operation draws random numbers; kept, as `tags` is a new list each time."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _is_composite(func: Any) -> bool:
    """Return whether an operation draws by calling others; torch dispatches those in inference mode only."""
    return bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


def _only_dim(shape: Sequence[int], samples: int) -> int | None:
    """Return the dimension of size `samples`, if no other one is a multiple of it."""
    multiples = [dim for dim, size in enumerate(shape) if size % samples == 0]
    return multiples[0] if len(multiples) == 1 and shape[multiples[0]] == samples else None


def sample_dim(shape: Sequence[int], samples: int) -> tuple[int, int] | None:
    """Return the sample dimension, and the number of positions along it for each sample; None if none fits.

    It is the first dimension of size `samples`, or else dimension 0 if its size is a multiple of `samples`:
    samples are then flattened together with another dimension.
    """
    dim = next((dim for dim, size in enumerate(shape) if size == samples), None)
    if dim is not None:
        return dim, 1
    return (0, shape[0] // samples) if shape and samples and shape[0] % samples == 0 else None


def _fill(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``x.uniform_()`` and the like, which overwrite `x`; probabilities may be one per element."""
    return _filled(mode.batch_draw(func, args[0].shape), func, args, kwargs)


def _filled(wide: BatchDraw | None, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    target, *rest = args
    if wide is None:
        return func(*args, **kwargs)
    whole = wide.empty(target)
    func(whole, *(_among_others(one, target.shape, wide) for one in rest), **kwargs)
    target.copy_(wide.own(whole))
    return target


def _bernoulli(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``x.bernoulli_(p)``, the mask of dropout on the CPU."""
    target, *rest = args
    probability = rest[0] if rest else kwargs.get("p", 0.5)
    wide = mode.batch_draw(func, target.shape)
    if wide is None or target.device.type != "cpu" or isinstance(probability, Tensor) or not matches_torch():
        return _filled(wide, func, args, kwargs)
    whole = wide.laid_out(functools.partial(random_bits, generator=kwargs.get("generator")), target)
    target.copy_(bernoulli_mask(wide.own(whole), probability))
    return target


def _like(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``rand_like(x)`` and the like, which use only the shape and dtype of `x`."""
    model, *rest = args
    wide = mode.batch_draw(func, model.shape)
    if wide is None:
        return func(*args, **kwargs)
    return wide.own(func(wide.empty(model), *rest, **kwargs)).clone()


def _of_size(position: int) -> Draw:
    """Return the function for ``randn(shape)`` and the like, whose shape is the argument at `position`."""

    def draw(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if "size" in kwargs:
            size = kwargs["size"]
        else:
            here = next((i for i, one in enumerate(args) if isinstance(one, list | tuple)), position)
            size = args[here]
        wide = mode.batch_draw(func, size)
        if wide is None:
            return func(*args, **kwargs)
        shape = list(wide.shape)
        if "size" in kwargs:
            return wide.own(func(*args, **{**kwargs, "size": shape})).clone()
        return wide.own(func(*args[:here], shape, *args[here + 1 :], **kwargs)).clone()

    return draw


def _of_values(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``bernoulli(p)`` and ``normal(mean, std)``; the values do not affect the number of draws."""
    model = next((one for one in args if isinstance(one, Tensor)), None)
    if model is None:
        return _of_size(2)(mode, func, args, kwargs)
    wide = mode.batch_draw(func, model.shape)
    if wide is None:
        return func(*args, **kwargs)
    return wide.own(func(*(_among_others(one, model.shape, wide) for one in args), **kwargs)).clone()


def _native_dropout(mode: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for dropout in one kernel, as on accelerators, which returns the values and the mask."""
    values, probability, train = args
    wide = mode.batch_draw(func, values.shape)
    if wide is None or not train:
        return func(*args, **kwargs)
    _, kept = func(wide.empty(values), probability, train, **kwargs)
    kept = wide.own(kept).clone()
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return values * kept * scale, kept


def _unchanged(_: SplitDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Draw for ``randperm``, which is not sliced: a call that permutes its samples cannot be split."""
    return func(*args, **kwargs)


def _among_others(value: Any, shape: Sequence[int], wide: BatchDraw) -> Any:
    """Return a tensor of the whole shape with `value` in this rank's part; return numbers unchanged."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    whole = wide.empty(value).fill_(0.5)
    wide.set_own(whole, value.expand(list(shape)))
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
    aten.rand: _of_size(0),
    aten.randn: _of_size(0),
    aten.randint: _of_size(1),
    **dict.fromkeys((aten.bernoulli, aten.normal), _of_values),
    aten.native_dropout: _native_dropout,
    aten.randperm: _unchanged,
}
