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
from samestep.autopilot.cut import Cut

aten = torch.ops.aten
Draw: TypeAlias = Callable[["WidenedDraws", Any, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Widened:
    """A shape as it would be for the whole batch, and where this rank's part of it lies."""

    shape: tuple[int, ...]
    dim: int
    start: int
    length: int

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part."""
        return whole.narrow(self.dim, self.start, self.length)

    def laid_out(self, new: Callable[[Sequence[int]], Tensor], like: Tensor) -> Tensor:
        """Return what `new` makes in the whole shape, its dimensions in memory ordered as those of `like`.

        Numbers are drawn in the order of the memory.
        """
        order = sorted(range(like.dim()), key=like.stride, reverse=True)
        inverse = sorted(range(like.dim()), key=order.__getitem__)
        return new([self.shape[dim] for dim in order]).permute(inverse)

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the whole shape, laid out and of the type as `like`."""
        return self.laid_out(like.new_empty, like)


class WidenedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which what is drawn for samples is a part of what is drawn for more of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.untold: set[str] = set()
        """Operations that draw in a way that depends on what they are given: theirs cannot be put right."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        draw = _DRAWS.get(func.overloadpacket)
        if draw is None:
            self.untold.add(str(func.overloadpacket))
            return func(*args, **kwargs)
        return draw(self, func, args, kwargs)

    def widened(self, shape: Sequence[int]) -> Widened | None:
        """Return the shape for more samples; None where no dimension is the samples'."""
        raise NotImplementedError


class GlobalDraws(WidenedDraws):  # type: ignore[no-untyped-call]
    """A context in which a slice of a batch draws as part of it.

    Args:
        cut: the slice.
    """

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self._cut = cut

    def widened(self, shape: Sequence[int]) -> Widened | None:
        """Return the shape for the whole batch; None where no dimension is the samples'."""
        cut = self._cut
        place = sample_dim(shape, cut.local)
        if place is None:
            return None
        dim, every = place
        whole = (*shape[:dim], cut.total * every, *shape[dim + 1 :])
        return Widened(whole, dim, cut.start * every, cut.local * every)


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
    target, *rest = args
    wide = mode.widened(target.shape)
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
    wide = mode.widened(target.shape)
    if wide is None or target.device.type != "cpu" or isinstance(probability, Tensor) or not are_torchs():
        return _fill(mode, func, args, kwargs)
    whole = wide.laid_out(functools.partial(bits, generator=kwargs.get("generator")), target)
    target.copy_(heads(wide.own(whole), probability))
    return target


def _like(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``rand_like(x)`` and the like, which take the form of `x` alone."""
    model, *rest = args
    wide = mode.widened(model.shape)
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
        wide = mode.widened(size)
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
    wide = mode.widened(model.shape)
    if wide is None:
        return func(*args, **kwargs)
    return wide.own(func(*(_among_others(one, model.shape, wide) for one in args), **kwargs)).clone()


def _native_dropout(mode: WidenedDraws, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Dropout in one kernel, as on accelerators: returns what is left, and which."""
    values, probability, train = args
    wide = mode.widened(values.shape)
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
    wide.own(whole).copy_(value.expand(list(shape)))
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
