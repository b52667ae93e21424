"""Runs a module on this rank's slice of a batch, with the statistics and draws of the whole batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import nn

from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_context import (
    PackedRows,
    SliceContext,
    batch_norm_over_ranks,
    current_slice,
)
from samestep.autopilot.state.saved_state import version_of
from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks.random_draws import RngState
from samestep.hooks.thread_values import bound

Forward: TypeAlias = Callable[..., Any]
WRITES_INPUT = "writes into what it is given"


@contextmanager
def as_slice(
    split: BatchSplit, draws: GlobalDraws | None, packings: Sequence[PackedRows] = ()
) -> Iterator[None]:
    """Normalize and draw random numbers as for the whole batch, of which this rank computes a slice.

    `packings` are the packed sequences of the call so far, if a part of it is computed again.
    """
    rows = None if draws is None else [*packings]

    def again(number: int, packed: int) -> Any:
        if draws is None:
            return as_slice(split, None)
        return as_slice(split, GlobalDraws(split, draws.plan(), number), (rows or [])[:packed])

    context = SliceContext(split, again, lambda: 0 if draws is None else draws.number, rows)
    with (
        bound(current_slice, context),
        batch_norm_over_ranks(split.world),
        draws or nullcontext(),
    ):
        yield


def call_slice(
    forward: Forward,
    module: nn.Module,
    part: CallArguments,
    split: BatchSplit,
    *,
    draws: GlobalDraws | None,
    reads: AbstractContextManager[object] | None = None,
) -> Any:
    """Return the ungathered outputs of a slice; raise `UsageError` if it writes into its arguments."""
    versions = versions_of(part)
    with as_slice(split, draws), reads or nullcontext():
        outputs = forward(module, *part.args, **part.kwargs)
    if versions_of(part) != versions:
        raise UsageError(f"{type(module).__name__} {WRITES_INPUT}, and a split call would do so in a slice.")
    return outputs


def check_draws(name: str, draws: GlobalDraws | None, before: RngState | None, device: torch.device) -> None:
    """Raise `OutOfStep` if a call has drawn random numbers in another way than in its equivalence check.

    `before` is the state of the generators before the call, if its check drew no random numbers.
    """
    if before is not None and not before.same(RngState.now(device)):
        raise OutOfStep(
            f"{name}, or another thread of the script during its call, drew random numbers, and it drew none "
            f"in its equivalence check: the workers' random streams now differ."
        )
    if draws is not None:
        draws.end()
    if draws is not None and draws.unknown:
        raise OutOfStep(
            f"{name} drew random numbers in another way than in its equivalence check "
            f"({'; '.join(sorted(draws.unknown))})."
        )


def versions_of(arguments: CallArguments) -> list[tuple[int | None, bool]]:
    """Return how often each tensor among the arguments was written to, and whether it requires gradients.

    A forward may call `requires_grad_` on its input, and the script then gets the gradient of that.
    """
    return [(version_of(tensor), tensor.requires_grad) for _, tensor in arguments.tensors()]
