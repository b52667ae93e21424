"""Counts the samples of each step, by the calls of models and by the batches that loaders return.

The samples of a batch are counted where a loader draws its indices. The batch itself does not show them: its
first dimension may be time, or all nodes of several graphs. Calls of models also show evaluations.

`StepCounts` sums up steps, samples and times for ``--count``: a view of the step clock.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import _DatasetKind

from samestep.base.step_phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER
from samestep.base.units import counted, seconds_text
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, named, wrapping
from samestep.hooks.tensor_tree import data_in, leaves
from samestep.observe.clock_file import ClockOptions
from samestep.observe.communication import ModelInfo


class SampleCounter:
    """Counts the samples of the current step.

    A call without gradients is not always an evaluation: a GAN's discriminator and a distilled student are
    trained on the output of another model. A call is an evaluation if the model is in evaluation mode and was
    trained before, or if nothing was trained on the batch before the next one is requested.
    """

    def __init__(self) -> None:
        self._trained: set[int] = set()  # ids of the models that were trained
        self.count = self.elements = 0
        """Rows, and elements of the input tensors, in the training calls of the step."""
        self.evaluated = False
        self.all_trained = self.all_otherwise = 0
        """Rows of all training calls, and of all other calls, since the beginning."""
        self._eval_call = (0, 0)
        self.has_trained = self._batch_trained = self._batch_evaluated = False
        """Whether a training call was made since the last backward, or with this batch; or any other call."""

    def trained(self, model: ModelInfo, rows: int, elements: int) -> None:
        """Record a training call."""
        self._add(rows, elements)
        self.has_trained = self._batch_trained = True
        self._trained |= model.ids

    def called_in_evaluation(self, rows: int, elements: int) -> None:
        """Record a call in evaluation mode with gradients, which a backward may follow."""
        self._batch_evaluated = True
        self._eval_call = rows, elements
        self.all_otherwise += rows

    def called_without_gradients(self, rows: int, evaluated: int | None) -> None:
        """Record a call without gradients; `evaluated` is the model's id if it is in evaluation mode."""
        self._batch_evaluated = True
        self.evaluated |= evaluated in self._trained
        self.all_otherwise += rows

    def began_backward(self) -> None:
        """Record that a backward begins."""
        if not self.has_trained:
            self._add(*self._eval_call)
            self.all_otherwise -= self._eval_call[0]
        self.has_trained, self._eval_call, self._batch_trained = False, (0, 0), True

    def loading(self) -> bool:
        """Record that the next batch is requested; return whether the last one was only evaluated."""
        was_evaluation = self._batch_evaluated and not self._batch_trained
        self.evaluated |= was_evaluation
        self._batch_trained = self._batch_evaluated = False
        self._eval_call = (0, 0)
        return was_evaluation

    def next_step(self) -> None:
        """Reset the counts for the next step."""
        self.count = self.elements = 0
        self.evaluated = False

    def _add(self, rows: int, elements: int) -> None:
        self.count += rows
        self.all_trained += rows
        self.elements += elements


def size_of(inputs: Sequence[Any]) -> tuple[int, int]:
    """Return the rows, and the elements in them, of the samples in a model's inputs."""
    first = inputs[0] if inputs else None
    if isinstance(first, Tensor) and first.dim() and not first.requires_grad:  # as in most scripts
        return first.size(0), first.numel()
    tensors = data_in(tuple(inputs))
    if len(tensors) > 1 and all(tensor.dim() == 3 for tensor in tensors):  # a list of images
        return len(tensors), sum(tensor.numel() for tensor in tensors)
    if tensors:
        return len(tensors[0]), tensors[0].numel()
    leafs = (
        leaf for _, leaf in leaves(tuple(inputs)) if isinstance(leaf, Tensor) and leaf.dim() and leaf.is_leaf
    )
    return next(((len(leaf), leaf.numel()) for leaf in leafs), (0, 0))


MAX_BATCHES = 1 << 14
"""Maximum batches tracked per step; beyond it the sample count is unknown. Graph replays never end a step."""


@dataclass(slots=True)
class _Pending:
    """The batches that an iterator has requested and not returned yet."""

    sizes: deque[int | None] = field(default_factory=deque)
    """Samples of each batch; None where one index stands for the whole batch."""
    has_rows: bool | None = None
    """Whether a batch has a row for each sample; None before the first batch."""


class LoadedSamples:
    """The samples of the batches that a script has loaded."""

    def __init__(self) -> None:
        self._batches: list[tuple[int | None, int]] = []
        """Samples and id of the data set, for each batch of this step."""
        self._used = 0  # the number of these batches that were loaded before the last training call
        self._samples_seen = self._batches_seen = 0
        self._has_several = False  # whether a step reads several data sets, whose epochs may differ

    def add(self, samples: int | None, data: int) -> None:
        """Record a batch.

        The number of samples is None if unknown; `data` is the id of the data set.
        """
        if len(self._batches) == MAX_BATCHES:
            self._batches, self._used = [(None, data)], min(self._used, 1)
        self._batches.append((samples, data))

    def clear(self) -> None:
        """Drop the batches of this step: another thread loaded them."""
        self._batches, self._used = [], 0

    def trained(self) -> None:
        """Record a training call."""
        self._used = len(self._batches)

    def drop_evaluation(self) -> None:
        """Drop the batches since the last training call: they were for an evaluation."""
        del self._batches[self._used :]

    def next_step(self) -> int | None:
        """Return the samples of the step that ends; None if unknown."""
        batches, self._batches, self._used = self._batches, [], 0
        if not batches:
            return 0
        known = [size for size, _ in batches if size is not None]
        self._samples_seen += sum(known)
        self._batches_seen += len(known)
        self._has_several |= len({data for _, data in batches}) > 1
        return sum(known) if len(known) == len(batches) else None

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples of an epoch of the training loader; None if unknown."""
        batches = self._batches_seen
        if self._has_several:
            return None
        try:
            if type(loader.batch_sampler) is BatchSampler:
                samples = len(loader.sampler)  # type: ignore[arg-type]
                return samples - samples % (loader.batch_size or 1) if loader.drop_last else samples
            # A user-defined batch sampler may give each rank its shard, which `sampler` does not show.
            return round(len(loader) * self._samples_seen / batches) if batches else None
        except TypeError:  # no length, as with an iterable data set
            return None


class LoaderHook:
    """Reports the batches that one thread gets from loaders: the thread that created it, until `follow`.

    `on_batch` is called with each batch, see `LoadedSamples.add`.
    """

    def __init__(self, on_batch: Callable[[int | None, int], None]) -> None:
        self._on_batch = on_batch
        self._thread = get_ident()
        self._pending: WeakKeyDictionary[Any, _Pending] = WeakKeyDictionary()
        self._is_loading = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Report batches for the duration of a block."""
        hooks = {
            declarations.LOADED_INDEX: named(self._wrap_next_index),
            declarations.LOADED_RESET: wrapping(self._reset),
            declarations.LOADED_BATCH: named(self._wrap_next),
        }
        with attached_all(hooks):
            yield

    def follow(self) -> None:
        """Report the batches of the calling thread from now on."""
        self._thread = get_ident()
        self._is_loading = False

    def _reset(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        self._pending.pop(iterator, None)
        return original(iterator, *args, **kwargs)

    def _wrap_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        pending = self._pending

        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            entry = pending.get(iterator)
            if entry is None:
                entry = pending[iterator] = _Pending()
            entry.sizes.append(len(index) if type(index) is list else _size(iterator, index))
            return index

        return next_index

    def _wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        pending, on_batch = self._pending, self._on_batch

        def next_batch(iterator: Any) -> Any:
            # Not the batches that another loader reads, nor those prefetched for the script.
            counts = get_ident() == self._thread and not self._is_loading
            self._is_loading |= counts
            try:
                batch = original(iterator)
            finally:
                counts &= get_ident() == self._thread  # no other thread has begun to train during the call
                self._is_loading &= not counts
            entry = pending.get(iterator)
            samples = None
            if entry is not None and entry.sizes:
                samples = entry.sizes.popleft()
                # No public spelling, here and below.
                if samples is not None and iterator._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001
                    samples = _samples_in(entry, samples, batch)
            if counts:
                on_batch(samples, id(iterator._dataset))  # noqa: SLF001
            return batch

        return next_batch


def _size(iterator: Any, index: Any) -> int | None:
    """Return how many samples an index selects; None if unknown."""
    if not (iterator._auto_collation or isinstance(index, list)):  # noqa: SLF001
        return None
    try:
        return len(index)
    except TypeError:
        return None


def _samples_in(entry: _Pending, asked: int, batch: Any) -> int:
    """Return the samples of a batch of an iterable data set: the requested number, or fewer."""
    rows = next((len(leaf) for _, leaf in leaves(batch) if leaf.dim()), 0)
    if entry.has_rows is None:
        entry.has_rows = rows == asked
    return rows if entry.has_rows else asked


COUNTING = ClockOptions(folder=Path(), warm_up=1)
"""Every step but the first, which includes one-time work, is timed."""

_PARTS = {
    DATA: "loading",
    FORWARD: "forward",
    BACKWARD: "backward",
    EXCHANGE: "exposed communication",
    OPTIMIZER: "optimizer",
}


class StepCounts:
    """The steps of one rank, received from a `ScriptClock`; see `StepSink`."""

    def __init__(self) -> None:
        self.steps = 0  # all steps, known after the end
        self.forget_steps()

    def forget_steps(self) -> None:
        """Drop all steps so far."""
        self._timed: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        """Number of timed steps without and with an evaluation, and their seconds."""

    def header(self, **run: Any) -> None:
        """Ignore the properties of the run."""

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add steps to the sums."""
        for line in lines:
            sums = self._timed["evaluated" in line]
            sums.update({name: line[name] for name in ("seconds", *_PARTS)}, steps=1)

    def end(self, ended: str, message: str, *, made: int, **run: Any) -> None:
        """Store the number of steps."""
        del ended, message, run
        self.steps = made

    @property
    def timed(self) -> Counter[str]:
        """The sums over the steps without evaluation; over all, if most have one as part of the training."""
        without, evaluated = self._timed.values()
        return without if without["steps"] >= evaluated["steps"] else without + evaluated

    def summary(self, samples: SampleCounter, *, is_sharded: bool) -> str:
        """Return the counts as one line.

        If they are sharded, these are the counts of worker 0's shard.
        """
        where = " on worker 0" if is_sharded else ""
        trained, otherwise, timed = samples.all_trained, samples.all_otherwise, self.timed
        trained_on = counted(trained, "sample")
        totals = f"{counted(self.steps, 'step')}, {trained_on} in training, {otherwise:,} otherwise{where}"
        if not timed["seconds"]:
            return totals
        shares = {name: timed[phase] / timed["seconds"] for phase, name in _PARTS.items()}
        parts = [f"{name} {share:.0%}" for name, share in shares.items() if share or name != _PARTS[EXCHANGE]]
        rest = max(0.0, 1 - sum(shares.values()))
        each_step = seconds_text(timed["seconds"] / timed["steps"])
        return f"{totals}; {each_step} a step: {', '.join(parts)}, the rest {rest:.0%}"
