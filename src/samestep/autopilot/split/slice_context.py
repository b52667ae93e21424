"""Holds the slice that a thread computes, for checkpoints, padding and collectives below a split call.

In an equivalence check a forward may raise for the slice of one rank, while the others have entered a batch
norm. So before each collective within a forward the ranks agree that none has failed.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from samestep.autopilot.split.device_failures import is_device_failure
from samestep.autopilot.split.packed_rows import PackedRows, packed_rows
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.base.context_values import bound
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.hooks.thread_values import ThreadValue

Agree = Callable[..., list[bool]]
"""Returns for each of its arguments whether all ranks have passed True."""
_agree: ThreadValue[Agree | None] = ThreadValue(None)


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

is_checkpointed: ContextVar[bool] = ContextVar("samestep_checkpointed", default=False)
"""Whether an activation checkpoint of the script, outside of split calls, computes its function."""


@contextmanager
def slice_aware_functions() -> Iterator[None]:
    """Let activation checkpoints recompute their slice, and pack and pad sequences as in the whole batch.

    A packed sequence is padded to the longest sequence of the batch: otherwise a mean over time, or an output
    with a time dimension, would depend on the samples of the slice.
    """

    def checkpoint(
        original: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        context = current_slice.get()
        if context is None:  # its backward calls the function again, and compares what autograd saves
            with bound(is_checkpointed, True):  # noqa: FBT003 - the value
                return original(function, *args, **kwargs)
        before = context.draws(), len(context.packings or ())

        def of_slice(*own: Any, **named: Any) -> Any:
            if current_slice.get() is not None:
                return function(*own, **named)
            with context.again(*before):
                return function(*own, **named)

        return original(of_slice, *args, **kwargs)

    # Both functions are looked up in each call of torch's, which a script may have imported before.
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
            before_collective()
            context.split.world.all_reduce(longest, op="max")
            length = int(longest)
        return original(data, batch_sizes, batch_first, padding_value, length)

    def pack(original: Callable[..., Any], data: Any, batch_sizes: Any, order: Any = None, *args: Any) -> Any:
        context = current_slice.get()
        if context is not None and context.packings is not None:
            before_collective()
            own_order = None if order is None else order.to("cpu")
            context.packings.append(packed_rows(batch_sizes, own_order, context.split))
        return original(data, batch_sizes, order, *args)

    hooks = {
        declarations.ACTIVATION_CHECKPOINT: wrapping(checkpoint),
        declarations.PADDED_SEQUENCE: wrapping(pad),
        declarations.PACKED_SEQUENCE: wrapping(pack),
    }
    with attached_all(hooks):
        yield


class OtherRankFailedError(Exception):
    """The slice of another rank has raised an error, or is not in the same collective."""


@contextmanager
def failing_together(agree: Agree) -> Iterator[None]:
    """End the block on all ranks if one of them raises; raise `OtherRankFailedError` on the others."""
    with _agree.bound(agree):
        try:
            yield
        except OtherRankFailedError:
            raise
        except Exception as error:
            if is_device_failure(error):  # which cannot communicate either
                raise
            agree(False, False, False)  # noqa: FBT003 - its only arguments
            raise
        else:
            _agree_on(is_end=True)


def before_collective() -> None:
    """Raise `OtherRankFailedError` if another rank has failed, or is at the end of its slice.

    Outside of `failing_together` this does nothing.

    Raises:
        UsageError: the samples are in a list, over which a forward may loop.
    """
    context = current_slice.get()
    if context is not None and context.split.of_list:
        raise UsageError(
            "a model computes over its whole batch (batch norm, packed sequences or gradients of parameters) "
            "within a call whose samples are in a list."
        )
    _agree_on(is_end=False)


def _agree_on(*, is_end: bool) -> None:
    """Raise an error if another rank has failed, or if some ranks are at the end of their slices only."""
    agree = _agree.get()
    if agree is None:
        return
    has_failed_none, are_at_end, are_within = agree(True, is_end, not is_end)  # noqa: FBT003
    if not has_failed_none:
        raise OtherRankFailedError("another worker's slice failed")
    if not are_at_end and not are_within:
        raise OtherRankFailedError("its slices communicate different numbers of times")
