"""Random numbers drawn within a slice: those of the whole batch, of which the slice takes its part.

Every rank has the same random stream. What a module draws for its samples is drawn here in the shape that
it would have for all of them, so that the stream goes on alike on every rank, and each rank's samples get
the numbers they would get on one worker::

    bernoulli_((local, 128))    becomes    bernoulli_((total, 128))[start : start + local]

What has no dimension for the samples, such as noise on weights, is drawn as it is, alike on every rank.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.autopilot.coins import are_torchs, bits, heads
from samestep.autopilot.cut import Cut, inverse, memory_order
from samestep.autopilot.draw_plans import DrawPlan, OneDraw, RecordedDraw
from samestep.watch.drawn import Drawn

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - no public spelling
Draw: TypeAlias = Callable[["WidenedDraws", Any, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Widened:
    """A shape as it would be for the whole batch, and where this rank's part of it lies.

    Args:
        shape: for the whole batch.
        dim: the dimension of the samples.
        start: the first sample of this rank.
        length: samples of this rank.
        every: places along `dim` for each sample.
        inner: whether the samples change faster than their places.
        order: the dimensions of the whole batch's draw, outermost in memory first; None if not known.
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
        """Return what `new` makes in the whole shape, its dimensions in memory ordered as those of `like`.

        Numbers are drawn in the order of the memory. A dimension of size 1, such as that of a slice of one
        sample, does not tell where it lies.
        """
        is_told = self.order is None or 1 not in like.shape
        order = memory_order(like) if is_told or self.order is None else list(self.order)
        return new([self.shape[dim] for dim in order]).permute(inverse(order))

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the whole shape, laid out and of the type as `like`."""
        return self.laid_out(like.new_empty, like)


class RecordedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records the shape of each draw: those of a call of the whole batch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[RecordedDraw] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        if _is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            value = result[0] if isinstance(result, tuple) else result
            shape = tuple(value.shape) if isinstance(value, Tensor) else ()
            order = tuple(memory_order(value)) if isinstance(value, Tensor) else ()
            self.shapes.append(RecordedDraw(_named(func, shape), shape, order))
        return result


class WidenedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which what is drawn for samples is a part of what is drawn for more of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.untold: set[str] = set()
        """Draws of which the part of a slice is not known, such as those that depend on values."""
        self.number = 0
        """Draws so far, the one under way included."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        self.number += 1
        draw = _DRAWS.get(func.overloadpacket)
        if draw is not None:
            return draw(self, func, args, kwargs)
        before = Drawn.now(_device(args))
        result = func(*args, **kwargs)
        if not before.same(Drawn.now(_device(args))):  # attention without dropout draws nothing
            self.untold.add(str(func.overloadpacket))
        return result

    def widened(self, func: Any, shape: Sequence[int]) -> Widened | None:
        """Return the shape for more samples; None where no dimension counts samples."""
        raise NotImplementedError


class GlobalDraws(WidenedDraws):  # type: ignore[no-untyped-call]
    """A context in which a slice of a batch draws as part of it.

    Args:
        cut: the slice.
        plan: which dimensions count samples; None where that follows from the sizes.
        number: draws of the call before the first one here.
    """

    def __init__(self, cut: Cut, plan: DrawPlan | None = None, number: int = 0) -> None:
        super().__init__()
        self._cut, self.known = cut, plan
        self.number = number

    def widened(self, func: Any, shape: Sequence[int]) -> Widened | None:
        """Return the shape for the whole batch; None where no dimension counts samples."""
        cut = self._cut
        place = sample_dim(shape, cut.local)
        inner, order = False, None
        if self.known is not None:
            draw = _named(func, shape)
            found = self.known.find(draw, self.number - 1)
            dim, order = (_only_dim(shape, cut.local), None) if found is None else found
            if (found is None and dim is None) or (dim is not None and shape[dim] % cut.local):
                self.untold.add(f"{draw.operation} in another shape than in the check, {list(shape)}")
                return None
            place = None if dim is None else (dim, shape[dim] // cut.local)
            inner = self.known.inner
        return None if place is None else widened_to(shape, place, cut, inner=inner, order=order)


class FoundDraws(GlobalDraws):  # type: ignore[no-untyped-call]
    """A context that finds the dimension of each draw: where a slice's shape is not that of the whole batch.

    Args:
        cut: the slice.
        shapes: the draws of the call of the whole batch.
        inner: whether samples change faster than their places, where a dimension counts both.
    """

    def __init__(self, cut: Cut, shapes: Sequence[RecordedDraw], *, inner: bool = False) -> None:
        super().__init__(cut)
        self._shapes, self._inner = shapes, inner
        self._dims: dict[int, int | None] = {}
        """By the number of the draw."""
        self.has_flattened = False
        """Whether a dimension counts samples and something else."""

    def widened(self, func: Any, shape: Sequence[int]) -> Widened | None:
        """Return the shape for the whole batch; None where no dimension counts samples."""
        number = self.number - 1
        draw = _named(func, shape)
        known = self._shapes[number] if number < len(self._shapes) else None
        if known is None or known.draw != draw:
            self.untold.add(f"{draw.operation} in another order than for the whole batch")
            return None
        differing = [dim for dim, size in enumerate(shape) if size != known.shape[dim]]
        if not differing:
            self._dims[number] = None
            return None
        dim = differing[0]
        if len(differing) > 1 or shape[dim] * self._cut.total != known.shape[dim] * self._cut.local:
            self.untold.add(f"{draw.operation} of {list(shape)}, and {list(known.shape)} for the whole batch")
            return None
        self._dims[number] = dim
        every = shape[dim] // self._cut.local
        self.has_flattened = self.has_flattened or every > 1
        return widened_to(shape, (dim, every), self._cut, inner=self._inner, order=known.order)

    def plan(self) -> DrawPlan:
        """Return what was found."""
        draws = tuple(one.draw for one in self._shapes)
        dims = tuple(self._dims.get(number) for number in range(len(draws)))
        return DrawPlan(draws, dims, tuple(one.order for one in self._shapes), self._inner)


def widened_to(
    shape: Sequence[int],
    place: tuple[int, int],
    cut: Cut,
    *,
    inner: bool,
    order: tuple[int, ...] | None = None,
) -> Widened:
    """Return the shape for the whole batch of a slice's; `place` is the samples' dimension and places."""
    dim, every = place
    whole = (*shape[:dim], cut.total * every, *shape[dim + 1 :])
    return Widened(whole, dim, cut.start, cut.local, every, inner and every > 1, order)


def _device(args: Sequence[Any]) -> torch.device:
    return next((one.device for one in args if isinstance(one, Tensor)), torch.device("cpu"))


def _named(func: Any, shape: Sequence[int]) -> OneDraw:
    return OneDraw(str(func.overloadpacket), len(shape))


def _is_composite(func: Any) -> bool:
    """Return whether an operation draws by others, which arrive here themselves but in inference mode."""
    return torch.Tag.nondeterministic_seeded in func.tags and func.has_kernel_for_dispatch_key(_COMPOSITE)


def _only_dim(shape: Sequence[int], samples: int) -> int | None:
    """Return the dimension that counts so many samples, if it can be only one."""
    multiples = [dim for dim, size in enumerate(shape) if size % samples == 0]
    return multiples[0] if len(multiples) == 1 and shape[multiples[0]] == samples else None


def sample_dim(shape: Sequence[int], samples: int) -> tuple[int, int] | None:
    """Return which dimension is that of so many samples, and how many places there each has.

    That is the first dimension as long as they are many, or else the first one if it is a multiple of it:
    samples that were flattened together with something else.
    """
    dim = next((dim for dim, size in enumerate(shape) if size == samples), None)
    if dim is not None:
        return dim, 1
    return (0, shape[0] // samples) if shape and samples and shape[0] % samples == 0 else None


def _fill(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``x.uniform_()`` and the like, which overwrite `x`; probabilities may be given for each element."""
    return _filled(mode.widened(func, args[0].shape), func, args, kwargs)


def _filled(wide: Widened | None, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    target, *rest = args
    if wide is None:
        return func(*args, **kwargs)
    whole = wide.empty(target)
    func(whole, *(_among_others(one, target.shape, wide) for one in rest), **kwargs)
    target.copy_(wide.own(whole))
    return target


def _coins(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``x.bernoulli_(p)``: what dropout draws on the CPU, and for large activations most of its time."""
    target, *rest = args
    probability = rest[0] if rest else kwargs.get("p", 0.5)
    wide = mode.widened(func, target.shape)
    if wide is None or target.device.type != "cpu" or isinstance(probability, Tensor) or not are_torchs():
        return _filled(wide, func, args, kwargs)
    whole = wide.laid_out(functools.partial(bits, generator=kwargs.get("generator")), target)
    target.copy_(heads(wide.own(whole), probability))
    return target


def _like(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``rand_like(x)`` and the like, which take the form of `x` alone."""
    model, *rest = args
    wide = mode.widened(func, model.shape)
    if wide is None:
        return func(*args, **kwargs)
    return wide.own(func(wide.empty(model), *rest, **kwargs)).clone()


def _of_size(position: int) -> Draw:
    """``randn(shape)`` and the like, whose shape is the argument at `position`."""

    def draw(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if "size" in kwargs:
            size = kwargs["size"]
        else:
            here = next((i for i, one in enumerate(args) if isinstance(one, list | tuple)), position)
            size = args[here]
        wide = mode.widened(func, size)
        if wide is None:
            return func(*args, **kwargs)
        shape = list(wide.shape)
        if "size" in kwargs:
            return wide.own(func(*args, **{**kwargs, "size": shape})).clone()
        return wide.own(func(*args[:here], shape, *args[here + 1 :], **kwargs)).clone()

    return draw


def _of_values(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``bernoulli(p)``, ``normal(mean, std)``: the values do not change how many numbers are drawn."""
    model = next((one for one in args if isinstance(one, Tensor)), None)
    if model is None:
        return _of_size(2)(mode, func, args, kwargs)
    wide = mode.widened(func, model.shape)
    if wide is None:
        return func(*args, **kwargs)
    return wide.own(func(*(_among_others(one, model.shape, wide) for one in args), **kwargs)).clone()


def _native_dropout(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Dropout in one kernel, as on accelerators: returns what is left, and which."""
    values, probability, train = args
    wide = mode.widened(func, values.shape)
    if wide is None or not train:
        return func(*args, **kwargs)
    _, kept = func(wide.empty(values), probability, train, **kwargs)
    kept = wide.own(kept).clone()
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return values * kept * scale, kept


def _as_it_is(_: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An order of something, which is never an order of a slice's own samples alone."""
    return func(*args, **kwargs)


def _among_others(value: Any, shape: Sequence[int], wide: Widened) -> Any:
    """Return a tensor of the whole shape with `value` in this rank's part; numbers as they are."""
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
    aten.bernoulli_: _coins,
    **dict.fromkeys((aten.rand_like, aten.randn_like, aten.randint_like), _like),
    aten.rand: _of_size(0),
    aten.randn: _of_size(0),
    aten.randint: _of_size(1),
    **dict.fromkeys((aten.bernoulli, aten.normal), _of_values),
    aten.native_dropout: _native_dropout,
    aten.randperm: _as_it_is,
}
