"""Finds what legitimately differs between ranks, and disables or synchronizes it.

These are batch norm, dropout, compression and noise. Any difference that remains in a native script is then a
fault.

Random numbers depend on the sample alone, not on its rank or its batch. Noise for the samples of a batch
(`randn_like` in a VAE, the time steps of a diffusion loss) comes from a table of a few rows that is equal on
all ranks; a digest of a sample's values selects its row. Other random numbers in a call are equal on all
ranks. The script's generators do not advance, so the order of its data is unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.autopilot.script.seeds import SEEDS_OF_NUMPY
from samestep.autopilot.split.random_draws import BatchDraw, SplitDraws, sample_dim
from samestep.autopilot.split.slice_context import batch_norm_of_slices, batch_norm_over_ranks
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.hooks.registry import attached, attached_all, instead, wrapping
from samestep.hooks.tensor_tree import data_in, leaves
from samestep.hooks.training_events import Listener, subscribed
from samestep.parallel.gradients.batch_norm import uses_batch_statistics
from samestep.ranks.world.process_group import adopt
from samestep.verify.compare import Comparison
from samestep.verify.tensor_summary import is_own
from samestep.verify.trace import Facts
from samestep.verify.verdict import Cause, Finding

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_COMPRESSING = ("powerSGD_hook", "quantization_hooks")  # modules of hooks that round or approximate gradients
_COMPRESSING_NAMES = ("fp16_compress", "bf16_compress")
_ROWS = 61  # rows of a table; samples that share a row get equal noise, which is harmless: a guess
_DRAWN = "dropout or noise"
"""The draws of calls of models."""
aten = torch.ops.aten


@contextmanager
def rank_features_disabled(on_own_generator: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Disable dropout and compression, make random numbers depend on the sample, and batch norm global.

    `on_own_generator` is called with a digest of the state of a generator of the script, when noise for the
    samples of a batch is first drawn from it.
    """
    with ExitStack() as stack:
        stack.enter_context(batch_norm_of_slices())
        hooks = {
            **dict.fromkeys(declarations.DROPOUTS, instead(_identity)),
            declarations.ATTENTION: _without_dropout,
            declarations.SEEDED_FETCH: wrapping(_fetch_seeded),
            declarations.GROUP_OF_NORM: wrapping(_over_all_ranks),
            declarations.COMMUNICATION_HOOK: wrapping(_without_compression),
        }
        stack.enter_context(attached_all(hooks))
        stack.enter_context(per_sample_randomness(on_own_generator))
        yield


def global_batch_norm() -> AbstractContextManager[None]:
    """Return a context that computes batch norm over the script's process group, if it has one."""
    has_group = dist.is_available() and dist.is_initialized()
    return batch_norm_over_ranks(adopt()) if has_group else nullcontext()


def normalizes_alone(module: nn.Module) -> bool:
    """Return whether a module is a batch norm with the statistics of a part of the ranks."""
    if not isinstance(module, BatchNorm) or not uses_batch_statistics(module):
        return False
    group: Any = getattr(module, "process_group", None)
    is_whole = group is None or group.size() == adopt().place.size
    return not (isinstance(module, nn.SyncBatchNorm) and is_whole)


def compresses(hook: Callable[..., Any]) -> bool:
    """Return whether a communication hook of torch compresses gradients, by its module and name."""
    module = getattr(hook, "__module__", "") or ""
    known = module.removeprefix(_HOOKS)
    is_named = getattr(hook, "__name__", "").startswith(_COMPRESSING_NAMES)
    return known != module and (known in _COMPRESSING or is_named)


def _without_compression(original: Callable[..., None], model: Any, state: Any, hook: Any) -> None:
    """Register a hook that averages gradients as they are in the place of one that compresses them."""
    original(model, *((None, allreduce_hook) if compresses(hook) else (state, hook)))


def _over_all_ranks(original: Callable[..., None], norm: Any, *args: Any, **kwargs: Any) -> None:
    original(norm, *args, **kwargs)
    norm.process_group = None


def _fetch_seeded(original: Callable[[Any, Any], Any], fetcher: Any, indices: Any) -> Any:
    if not isinstance(fetcher.dataset, _SeededDataset):
        fetcher.dataset = _SeededDataset(fetcher.dataset)
    return original(fetcher, indices)


def _identity(input: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:  # noqa: A002 - torch's name
    return input


def _without_dropout(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG001 - replaced by 0
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return call


def plain_index(index: Any) -> Any:
    """Return an index of samples, or a list of them, without arrays: equal indices are then comparable."""
    if isinstance(index, Tensor | np.ndarray | np.generic):
        return index.tolist()
    return [plain_index(part) for part in index] if isinstance(index, list | tuple) else index


class _SeededDataset:
    """A data set that seeds the random generators by the index of each sample."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # it fetches a batch at once, which cannot be seeded by sample
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        before = RngState.now()
        seed_generators(crc32(repr(plain_index(index)).encode()) % SEEDS_OF_NUMPY)
        try:
            return self._inner[index]
        finally:
            before.restore()


@contextmanager
def per_sample_randomness(on_own_generator: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Make the random numbers of this process depend on the sample that they are drawn for."""
    batches = _Batches(on_own_generator)
    with ExitStack() as stack:
        stack.enter_context(subscribed(batches))
        stack.enter_context(attached(declarations.DELIVERED_BATCH, wrapping(batches.fetch)))
        stack.enter_context(batches.draws)
        yield


class _Batches(Listener):
    """Tracks the current samples: those of the last batch, and within a call those of its inputs."""

    def __init__(self, on_own_generator: Callable[[int], None]) -> None:
        self.draws = _SamplesDraws(on_own_generator)
        self._calls = 0

    def fetch(self, original: Callable[..., Any], loader: Any) -> Any:
        """Fetch the next batch with the script's own generators."""
        self.draws.take(())
        batch = original(loader)
        self.draws.take(_digests(tensor for _, tensor in leaves(batch)))
        return batch

    @contextmanager
    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """See `Listener.call`."""
        fetched, digests = self.draws.samples, _digests(data_in(tuple(inputs)))
        if len(digests) != len(fetched):
            self.draws.take(digests)
        self._calls += is_training  # evaluations do not count: sometimes only one rank evaluates
        device = next(module.parameters()).device
        before = RngState.now(device)
        seed_generators(self._calls, device)
        try:
            yield
        finally:
            before.restore()
            if len(digests) != len(fetched):
                self.draws.take(fetched)


@dataclass(frozen=True, slots=True)
class _Table(BatchDraw):
    """The shape of a table of noise, and the row of each sample."""

    rows: Tensor = field(kw_only=True)

    def set_part_of(self, whole: Tensor, part: Tensor) -> None:
        """Do nothing: the rows of the table belong to no sample."""


class _SamplesDraws(SplitDraws):  # type: ignore[no-untyped-call]
    """A dispatch mode that draws random numbers for each sample."""

    def __init__(self, on_own_generator: Callable[[int], None]) -> None:
        super().__init__()
        self._on_own_generator: Callable[[int], None] | None = on_own_generator
        self.samples: Sequence[int] = ()
        self._number = 0  # number of draws for these samples
        self._device = torch.device("cpu")  # device of the current random operation

    def take(self, samples: Sequence[int]) -> None:
        """Set the current samples, each by its digest."""
        self.samples, self._number = samples, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        is_draw = torch.Tag.nondeterministic_seeded in func.tags
        if not (is_draw and self.samples):
            return func(*args, **kwargs)
        if generator is not None and (is_own(generator) or func.overloadpacket in _OF_INTEGERS):
            return func(*args, **kwargs)  # whole numbers from a generator of the script choose samples
        self._device = _device(args, kwargs)
        if generator is None:
            return self._draw_each(func, types, args, kwargs)[0]
        before = RngState.now(self._device)
        # A draw in place has changed its tensor, which the generator of the script would fill again.
        drawn, is_of_samples = self._draw_each(func, types, args, {**kwargs, "generator": None})
        if not is_of_samples:
            before.restore()
            return func(*args, **kwargs)
        if self._on_own_generator is not None:
            self._on_own_generator(crc32(generator.get_state().cpu().numpy()))
            self._on_own_generator = None
        return drawn

    def _draw_each(
        self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, bool]:
        """Draw from the global generator, and return whether the numbers belong to samples."""
        number, before = self._number, RngState.now(self._device)
        by_values = _BY_VALUES.get(func)
        drawn = (
            super().__torch_dispatch__(func, types, args, kwargs)
            if by_values is None
            else by_values(self, *args)
        )
        if self._number != number:
            before.restore()
        return drawn, self._number != number

    def batch_draw(self, func: Any, shape: Sequence[int]) -> BatchDraw | None:  # noqa: ARG002 - of the interface
        """Return the shape of a table that all ranks draw; None if no dimension is that of the samples."""
        place = sample_dim(shape, len(self.samples))
        if place is None:
            return None
        dim, every = place
        self._number += 1
        seed_generators(self._number, self._device)
        rows = torch.tensor([sample % _ROWS for sample in self.samples], device="cpu")
        each = rows.mul(every)[:, None] + torch.arange(every, device="cpu")
        whole = (*shape[:dim], _ROWS * every, *shape[dim + 1 :])
        return _Table(whole, dim, 0, shape[dim], rows=each.flatten())

    def noise(self, model: Tensor, fill: Callable[[Tensor], Tensor]) -> Tensor:
        """Return numbers in the shape of a tensor, from a table that `fill` fills."""
        wide = self.batch_draw(None, model.shape)
        return fill(torch.empty_like(model)) if wide is None else wide.part_of(fill(wide.empty(model)))


def _bernoulli(draws: _SamplesDraws, probability: Tensor) -> Tensor:
    return (draws.noise(probability, Tensor.uniform_) < probability).to(probability)


def _bernoulli_into(draws: _SamplesDraws, target: Tensor, probability: Tensor) -> Tensor:
    model = torch.empty_like(target, dtype=torch.float64)
    return target.copy_(draws.noise(model, Tensor.uniform_) < probability)


def _normal(draws: _SamplesDraws, mean: Any, std: Any = 1.0) -> Tensor:
    drawn: Tensor = mean + draws.noise(mean + std, Tensor.normal_) * std
    return drawn


_OF_INTEGERS = (aten.randint, aten.randint_like, aten.random, aten.random_, aten.randperm)
_BY_VALUES: Mapping[Any, Callable[..., Tensor]] = {
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli_.Tensor: _bernoulli_into,
    **dict.fromkeys((aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor), _normal),
}
"""Random operations whose distribution depends on per-sample values."""


def _digests(tensors: Iterable[Tensor]) -> Sequence[int]:
    """Return a digest for each row of the first non-empty tensor."""
    for tensor in tensors:
        if tensor.dim() and tensor.numel() and tensor.layout == torch.strided and not tensor.is_nested:
            values = tensor.detach().resolve_conj().resolve_neg().cpu()
            rows = values.reshape(tensor.size(0), -1).contiguous().view(torch.uint8).numpy()
            return [crc32(row) for row in rows]
    return ()


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of a random operation."""
    device = next((argument.device for argument in args if isinstance(argument, Tensor)), None)
    return device or torch.device(kwargs.get("device") or "cpu")


def exceptions_of(comparison: Comparison) -> list[Finding]:
    """Return the legitimate differences between the ranks of a run, with the largest deviation."""
    run = comparison.run
    facts = [trace.facts for trace in run.traces]
    is_native = not run.runs_once
    possible: tuple[tuple[Cause, str, bool], ...] = (
        (
            "batch-norm-local",
            "batch norm takes its statistics over each worker's share",
            any(rank_facts.batch_norm for rank_facts in facts) and is_native,
        ),
        (
            *_draws({rank_facts.stream for rank_facts in facts}, "random-per-worker", _DRAWN),
            any(rank_facts.drew or _drops(rank_facts) for rank_facts in facts) and is_native,
        ),
        (
            *_draws(
                {rank_facts.fetch_stream for rank_facts in facts}, "augmentation-per-worker", "augmentation"
            ),
            any(rank_facts.augmented for rank_facts in facts) and is_native,
        ),
        (
            "compressed-gradients",
            f"{run.facts.compressed} compresses the gradients of each rank before they are averaged",
            bool(run.facts.compressed),
        ),
    )
    return [
        Finding(
            cause=cause,
            message=message,
            workers=run.size,
            max_relative_deviation=comparison.largest_deviation,
            kind="exception",
        )
        for cause, message, applies in possible
        if applies
    ]


def _drops(facts: Facts) -> bool:
    """Return whether values were dropped, also where the generator's state was restored after the draw."""
    return any(rate for rates in facts.dropouts.values() for rate in rates)


def _draws(streams: Set[int], of_each: Cause, drawn: str) -> tuple[Cause, str]:
    """Return the exception of random numbers whose generators are in these states on the ranks.

    `of_each` is the cause if each has its own, and `drawn` what is drawn.
    """
    if len(streams) == 1 and any(streams):
        message = f"all workers draw the same {drawn} for different samples (seed with seed + rank)"
        return "random-alike-on-workers", message
    return of_each, f"each worker draws its own {drawn}"


def of_own_generators(neutral: Comparison) -> Finding | None:
    """Return the exception that ranks draw noise from generators of the script, if a neutral run found it."""
    streams = {trace.facts.own_stream for trace in neutral.run.traces}
    if neutral.run.runs_once or not any(streams):
        return None
    cause, message = _draws(streams, "random-per-worker", _DRAWN)
    return Finding(cause=cause, message=message, workers=neutral.size, kind="exception")
