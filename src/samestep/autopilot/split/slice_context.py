"""Holds the slice that a thread computes, and lets what is computed over the whole batch see all of it.

These are batch norms, the padding of packed sequences and activation checkpoints below a split call.

In an equivalence check a forward may raise for the slice of one rank, while the others have entered a batch
norm. So before each collective within a forward the ranks agree that none has failed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.overrides import _get_current_function_mode_stack

from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.state.sample_reads import GuardedReads, SampleReads
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached, attached_all, original_of, wrapping
from samestep.hooks.thread_values import ThreadValue, bound
from samestep.parallel.gradients.batch_norm import global_batch_norm
from samestep.ranks.world.protocol import World


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a slice's packed sequences."""

    rows: Tensor
    """Their places among the rows of the whole batch, on the CPU."""
    total: int
    """The number of rows of the whole batch."""


def packed_rows(batch_sizes: Tensor, order: Tensor | None, split: BatchSplit) -> PackedRows:
    """Return the rows of this rank's sequences; all ranks call this.

    Args:
        batch_sizes: the number of this rank's sequences that have an element, for each place of one.
        order: the order in which this rank's sequences are packed, on the CPU; None if that is their own.
        split: the batch, and this rank's samples.
    """
    places = torch.arange(split.local, device="cpu")
    own_lengths = (batch_sizes > places[:, None]).sum(1)
    packed = places if order is None else order
    whole = torch.zeros(split.total, dtype=torch.float64, device="cpu")
    whole[split.start + packed] = own_lengths.double()
    # After what raises an error if the sequences are not those of this slice.
    before_collective("packed", split.total)
    split.world.all_reduce(whole)
    whole = whole.long()
    # By the operation by which torch orders the sequences of the whole batch.
    whole_order = (
        torch.arange(split.total, device="cpu") if order is None else torch.sort(whole, descending=True)[1]
    )
    own_places = whole_order.argsort()[split.start + packed]
    steps = torch.arange(int(whole.max()), device="cpu")[:, None]
    sizes = (whole > steps).sum(1)
    begins = sizes.cumsum(0) - sizes
    return PackedRows((begins[:, None] + own_places)[own_lengths > steps], int(whole.sum()))


_FINAL = re.compile(
    r"(CUDA|HIP)( driver)? error: .*(assert|illegal|misaligned|launch fail|uncorrectable|hardware stack"
    r"|invalid program counter|invalid address space)"
)


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error ends all computations on a device, unlike one of memory or of an argument."""
    return isinstance(error, RuntimeError) and bool(_FINAL.search(str(error)))


class OtherRankFailedError(Exception):
    """The slice of another rank has raised an error, or is not in the same collective."""


Agree = Callable[..., list[bool]]
"""Returns for each of its arguments whether all ranks have passed True."""


@dataclass(eq=False, slots=True)
class _Together:
    """The block of `failing_together`, which a model's forward runs in."""

    agree: Agree
    are_same: Callable[[Any], bool]
    """Returns whether all ranks have passed the same value."""
    failure: str = ""
    """Why the block has failed on all ranks: a model may catch the error of that."""

    def agree_on(self, collective: Any = None) -> None:
        """Raise an error if the ranks do not come together to this collective, or to their slices' ends."""
        is_end = collective is None
        if not self.failure:
            has_failed_none, are_at_end, are_within = self.agree(True, is_end, not is_end)  # noqa: FBT003
            if not has_failed_none:
                self.failure = "another worker's slice failed"
            elif not are_at_end and not are_within:
                self.failure = "its slices communicate different numbers of times"
            elif not is_end and not self.are_same(collective):
                self.failure = "its slices communicate different numbers of values"
        if self.failure:
            raise OtherRankFailedError(self.failure)

    def fail(self) -> None:
        """Let the block fail on the other ranks; raise if it has failed on them before."""
        if self.failure:
            raise OtherRankFailedError(self.failure)
        self.agree(False, False, False)  # noqa: FBT003 - its only arguments


_together: ThreadValue[_Together | None] = ThreadValue(None)


@dataclass(frozen=True, slots=True)
class SliceContext:
    """The slice that is being computed."""

    split: BatchSplit  # how the batch is sharded
    # returns the context that recomputes a part of the slice, given the draws and packings before that part
    again: Callable[[int, int], AbstractContextManager[Any]]
    draws: Callable[[], int]  # returns how many random draws the call has made so far
    # the rows of each packed sequence so far; None if the call draws no random numbers
    packings: list[PackedRows] | None = None


current_slice: ContextVar[SliceContext | None] = ContextVar("samestep_slice", default=None)
"""The slice that the calling thread computes, for the first time or again; None outside of split calls."""


@dataclass(slots=True)
class Recomputations:
    """Counts the parts of slices that backwards of any thread have computed again."""

    number: int = 0


recomputations = Recomputations()

is_checkpointed: ContextVar[bool] = ContextVar("samestep_checkpointed", default=False)
"""Whether an activation checkpoint of the script, outside of split calls, computes its function."""


def _is_aligned(original: Callable[[Tensor, Tensor], bool], rows: Tensor, mask: Tensor) -> bool:
    """Return whether all padding of the whole batch is at the ends of its rows.

    In evaluation torch's transformer encoder then computes without it, and its outputs there are zeros.
    """
    is_aligned, context = original(rows, mask), current_slice.get()
    if context is None:
        return is_aligned
    flag = torch.tensor([float(is_aligned)], device="cpu")
    before_collective("aligned")
    context.split.world.all_reduce(flag, op="min")
    return bool(flag)


def _computing_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an activation checkpoint, which a backward calls again for the same slice."""
    context = current_slice.get()
    if context is None:
        return function
    before = context.draws(), len(context.packings or ())

    def of_slice(*args: Any, **kwargs: Any) -> Any:
        if current_slice.get() is not None:
            return function(*args, **kwargs)
        recomputations.number += 1
        with context.again(*before):
            return function(*args, **kwargs)

    return of_slice


@contextmanager
def slice_aware_functions() -> Iterator[None]:
    """Let activation checkpoints recompute their slice, and pad sequences as in the whole batch.

    A packed sequence is padded to the longest sequence of the batch: otherwise a mean over time, or an output
    with a time dimension, would depend on the samples of the slice.
    """

    def checkpoint(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        with bound(is_checkpointed, is_checkpointed.get() or current_slice.get() is None):
            return original(_computing_again(function), *args, **kwargs)

    # The others are looked up in each call of a function of torch, which a script may have kept from before.
    def reentrant(original: Callable[..., Any], node: Any, function: Any, *args: Any) -> Any:
        return checkpoint(partial(original, node), function, *args)

    def recomputed(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_computing_again(function), *args, **kwargs)

    def pad(
        original: Callable[..., Any],
        data: Any,
        batch_sizes: Any,
        batch_first: bool,  # noqa: FBT001 - as torch has it
        padding_value: float,
        length: int,
    ) -> Any:
        context = current_slice.get()
        if context is not None:
            # The host has the lengths, and the ranks of a script exchange tensors of the host, too. A device
            # would have to finish its work first.
            longest = torch.tensor([length], device="cpu")
            before_collective("padded")
            context.split.world.all_reduce(longest, op="max")
            length = int(longest)
        return original(data, batch_sizes, batch_first, padding_value, length)

    def pack(original: Callable[..., Any], data: Any, batch_sizes: Any, order: Any = None, *args: Any) -> Any:
        context = current_slice.get()
        if context is not None and context.packings is not None:
            own_order = None if order is None else order.to("cpu")
            context.packings.append(packed_rows(batch_sizes, own_order, context.split))
        return original(data, batch_sizes, order, *args)

    hooks = {
        declarations.ACTIVATION_CHECKPOINT: wrapping(checkpoint),
        declarations.REENTRANT_CHECKPOINT: wrapping(reentrant),
        **dict.fromkeys(declarations.RECOMPUTING_CHECKPOINTS, wrapping(recomputed)),
        declarations.PADDED_SEQUENCE: wrapping(pad),
        declarations.PACKED_SEQUENCE: wrapping(pack),
        declarations.ALIGNED_MASK: wrapping(_is_aligned),
    }
    with attached_all(hooks):
        yield


@contextmanager
def known_to_compilers() -> Iterator[None]:
    """Let TorchScript compile the originals of replaced functions, and `torch.compile` know these only.

    Replacements are not written in TorchScript's language. `torch.compile` then traces them like any code.
    """

    def of_original(find: Callable[..., Any], function: Any, *place: Any) -> Any:
        return find(original_of(function), *place)

    hooks = {
        declarations.SCRIPTED_FUNCTION: wrapping(of_original),
        declarations.SCRIPTED_BUILTIN: wrapping(of_original),
        declarations.COMPILED_FUNCTION: wrapping(lambda load, name: original_of(load(name))),
    }
    with attached_all(hooks):
        yield


_PLAIN = torch._C._disabled_torch_function_impl  # noqa: SLF001 - no public spelling


def _is_overridden(original: Callable[[Iterable[Any]], bool], operands: Iterable[Any]) -> bool:
    """Return whether a class or a mode overrides what torch computes of operands; to watch reads is none.

    Torch's transformers compute in another way then, which leaves other numbers for padding.
    """
    operands = tuple(operands)
    if not original(operands):
        return False
    modes: Sequence[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if not all(isinstance(mode, (GuardedReads, SampleReads)) for mode in modes):
        return True
    kinds = {type(operand) for operand in operands} - {Tensor}
    return any(getattr(kind, "__torch_function__", _PLAIN) is not _PLAIN for kind in kinds)


@contextmanager
def unseen_by_layers(reads: GuardedReads | SampleReads) -> Iterator[None]:
    """Guard or record reads in the block, unseen by torch's layers.

    It is for one call, since `torch.compile` does not compile a function that is replaced.
    """
    with attached(declarations.OVERRIDDEN, wrapping(_is_overridden)), reads:
        yield


@contextmanager
def failing_together(agree: Agree, are_same: Callable[[Any], bool]) -> Iterator[None]:
    """End the block on all ranks if one of them raises; raise `OtherRankFailedError` on the others."""
    together = _Together(agree, are_same)
    with _together.bound(together):
        try:
            yield
        except OtherRankFailedError:
            raise
        except Exception as error:
            if is_device_failure(error):  # which cannot communicate either
                raise
            together.fail()
            raise
        else:
            together.agree_on()


def before_collective(*form: Any) -> None:
    """Raise `OtherRankFailedError` if another rank has failed, or comes to another collective or to its end.

    Outside of `failing_together` this does nothing.

    Args:
        form: what the collective is, and the sizes of its tensors.

    Raises:
        UsageError: the samples are in a list, over which a forward may loop.
    """
    context = current_slice.get()
    if context is not None and context.split.of_list:
        raise UsageError(
            "a model computes over its whole batch (batch norm, packed sequences or gradients of parameters) "
            "within a call whose samples are in a list."
        )
    together = _together.get()
    if together is not None:
        together.agree_on(form)


_normalize: ContextVar[Callable[..., Tensor] | None] = ContextVar("samestep_batch_norm", default=None)
"""Normalizes a batch with its statistics, given that, the running ones, weight and bias, momentum and eps."""


@dataclass(slots=True)
class _Normalizing:
    """Whether any thread computes slices, which code that `torch.compile` has compiled can ask."""

    depth: int = 0


_normalizing = _Normalizing()


@contextmanager
def batch_norm_over_ranks(world: World) -> Iterator[None]:
    """Normalize this rank's slices with the statistics of the whole batch."""

    def normalize(batch: Tensor, running: Any, affine: Any, momentum: float, eps: float) -> Tensor:
        before_collective("normalized", batch.shape[1], batch.dtype)
        return global_batch_norm(world, batch, running, affine, momentum=momentum, eps=eps)

    with bound(_normalize, normalize):
        _normalizing.depth += 1
        try:
            yield
        finally:
            _normalizing.depth -= 1


@contextmanager
def batch_norm_of_slices() -> Iterator[None]:
    """Replace batch norm, which layers of torch and of others call, so that it can normalize a slice.

    `torch.compile` compiles it as usual but in slices: a compiled graph cannot contain communication.
    """

    def make(original: Callable[..., Tensor]) -> Any:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def of_slice(batch: Tensor, running: Any, affine: Any, momentum: float, eps: float) -> Tensor:
            normalize = _normalize.get()
            if normalize is None or batch.dim() < 2:
                return original(batch, *running, *affine, True, momentum, eps)  # noqa: FBT003 - as torch has it
            return normalize(batch, running, affine, momentum, eps)

        @wraps(original)
        def batch_norm(  # noqa: PLR0913, PLR0917 - torch's parameters
            input: Tensor,  # noqa: A002
            running_mean: Tensor | None,
            running_var: Tensor | None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            training: bool = False,  # noqa: FBT001, FBT002
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            running, affine = (running_mean, running_var), (weight, bias)
            if training and _normalizing.depth:
                normalized: Tensor = of_slice(input, running, affine, momentum, eps)
                return normalized
            return original(input, *running, *affine, training, momentum, eps)

        return batch_norm

    def below(  # noqa: PLR0913, PLR0917 - torch's parameters
        original: Callable[..., Tensor],
        input: Tensor,  # noqa: A002
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,  # noqa: FBT001
        momentum: float,
        eps: float,
        cudnn_enabled: bool,  # noqa: FBT001
    ) -> Tensor:
        """Normalize a slice for code that has kept `batch_norm` from before it was replaced."""
        running, affine = (running_mean, running_var), (weight, bias)
        normalize = _normalize.get() if training and _normalizing.depth else None
        if normalize is None or input.dim() < 2:
            return original(input, *affine, *running, training, momentum, eps, cudnn_enabled)
        if isinstance(input, FakeTensor):
            raise UsageError("torch.compile compiles a batch norm that a split call cannot replace.")
        return normalize(input, running, affine, momentum, eps)

    with attached_all({declarations.BATCH_NORM: make, declarations.BATCH_NORM_BELOW: wrapping(below)}):
        yield
