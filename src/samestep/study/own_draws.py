"""Noise that belongs to the sample: the same on whichever worker, and in whichever batch, the sample is.

What is drawn for the samples of a batch (`randn_like` in a VAE, the time steps of a diffusion loss) is drawn
as a table of a few rows, alike on all ranks, from which each sample takes the row that a digest of its values
says. What else is drawn within a call is drawn alike on all ranks. The streams of the script stay where they
are, so that the order of its data is what it was: a fault in that order is none of these draws.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

from samestep.autopilot.draws import BatchDraw, SplitDraws, sample_dim
from samestep.watch.drawn import RngState, seed_generators
from samestep.watch.events import Listener, subscribed, wrapped
from samestep.watch.inputs import data_in
from samestep.watch.tree import leaves

_ROWS = 61
"""Of a table. Samples that take the same row draw the same, which is no harm."""
aten = torch.ops.aten


@contextmanager
def draws_of_samples() -> Iterator[None]:
    """Within, what this process draws for samples is the samples' own."""
    batches = _Batches()
    with ExitStack() as stack:
        stack.enter_context(subscribed(batches))
        stack.enter_context(wrapped(LoaderIterator, "__next__", batches.fetch))
        stack.enter_context(batches.draws)
        yield


class _Batches(Listener):
    """Knows which samples are being worked on: those fetched last, and within a call those given to it."""

    def __init__(self) -> None:
        self.draws = _SamplesDraws()
        self._calls = 0

    def fetch(self, original: Callable[..., Any], loader: Any) -> Any:
        """Fetch the next batch, by the script's own streams."""
        self.draws.take(())
        batch = original(loader)
        self.draws.take(_digests(tensor for _, tensor in leaves(batch)))
        return batch

    @contextmanager
    def call(self, module: nn.Module, given: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """See `Listener.call`."""
        fetched, inputs = self.draws.samples, _digests(data_in(tuple(given)))
        if len(inputs) != len(fetched):
            self.draws.take(inputs)
        self._calls += is_training  # one rank alone may evaluate
        device = next(module.parameters()).device
        before = RngState.now(device)
        seed_generators(self._calls, device)
        try:
            yield
        finally:
            before.restore()
            if len(inputs) != len(fetched):
                self.draws.take(fetched)


@dataclass(frozen=True, slots=True)
class _Table(BatchDraw):
    """A shape with the rows of a table instead of samples, and which row each sample takes."""

    rows: Tensor = field(kw_only=True)

    def own(self, whole: Tensor) -> Tensor:
        """Return the samples' rows."""
        return whole.index_select(self.dim, self.rows.to(whole.device))

    def set_own(self, whole: Tensor, part: Tensor) -> None:
        """Leave the table alone: its rows are no sample's."""


class _SamplesDraws(SplitDraws):  # type: ignore[no-untyped-call]
    """A context in which samples draw their own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: Sequence[int] = ()
        self._number = 0
        """Draws for these samples."""
        self._device = torch.device("cpu")
        """Where the operation draws that is being run."""

    def take(self, samples: Sequence[int]) -> None:
        """Take note of the samples that are being worked on, each by its digest."""
        self.samples, self._number = samples, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        is_draw = torch.Tag.nondeterministic_seeded in func.tags
        # A generator of the script's own is none of the streams that a launcher leaves unseeded.
        if not (is_draw and self.samples) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        self._device = _device(args, kwargs)
        number, before = self._number, RngState.now(self._device)
        by_values = _BY_VALUES.get(func)
        drawn = (
            super().__torch_dispatch__(func, types, args, kwargs)
            if by_values is None
            else by_values(self, *args)
        )
        if self._number != number:
            before.restore()
        return drawn

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:  # noqa: ARG002 - of the interface
        """Return the shape of a table, to be drawn alike by all; None where no dimension is the samples'."""
        place = sample_dim(shape, len(self.samples))
        if place is None:
            return None
        dim, every = place
        self._number += 1
        seed_generators(self._number, self._device)
        rows = torch.tensor([sample % _ROWS for sample in self.samples])
        each = rows.mul(every)[:, None] + torch.arange(every)
        whole = (*shape[:dim], _ROWS * every, *shape[dim + 1 :])
        return _Table(whole, dim, 0, shape[dim], rows=each.flatten())

    def noise(self, model: Tensor, fill: Callable[[Tensor], Tensor]) -> Tensor:
        """Return numbers of the form of a tensor, from a table that `fill` fills."""
        wide = self.batch_draw(None, model.shape)
        return fill(torch.empty_like(model)) if wide is None else wide.own(fill(wide.empty(model)))


def _bernoulli(draws: _SamplesDraws, probability: Tensor) -> Tensor:
    return (draws.noise(probability, Tensor.uniform_) < probability).to(probability)


def _bernoulli_into(draws: _SamplesDraws, target: Tensor, probability: Tensor) -> Tensor:
    model = torch.empty_like(target, dtype=torch.float64)
    return target.copy_(draws.noise(model, Tensor.uniform_) < probability)


def _normal(draws: _SamplesDraws, mean: Any, std: Any = 1.0) -> Tensor:
    drawn: Tensor = mean + draws.noise(mean + std, Tensor.normal_) * std
    return drawn


_BY_VALUES: Mapping[Any, Callable[..., Tensor]] = {
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli_.Tensor: _bernoulli_into,
    **dict.fromkeys((aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor), _normal),
}
"""What is drawn for values that each sample has its own of."""


def _digests(tensors: Iterable[Tensor]) -> Sequence[int]:
    """Return a number for each row of the first tensor that has any."""
    for tensor in tensors:
        if tensor.dim() and tensor.numel() and tensor.layout == torch.strided:
            rows = tensor.detach().cpu().reshape(tensor.size(0), -1).contiguous().view(torch.uint8).numpy()
            return [crc32(row) for row in rows]
    return ()


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Return where an operation draws."""
    given = next((one.device for one in args if isinstance(one, Tensor)), None)
    return given or torch.device(kwargs.get("device") or "cpu")
