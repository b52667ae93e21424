"""Runs a module on this rank's slice of a batch, with the statistics and draws of the whole batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from torch import nn
from torch.overrides import TorchFunctionMode

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.split.activation_checkpoints import SliceContext, within_slice
from samestep.autopilot.split.batch_norms import batch_norm_over_ranks, batch_norm_over_slice
from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.per_worker_streams import own_stream
from samestep.autopilot.split.random_draws import GlobalDraws, InferredDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.state.saved_state import version_of
from samestep.base.errors import UsageError

Forward: TypeAlias = Callable[..., Any]


@contextmanager
def as_slice(split: BatchSplit, draws: GlobalDraws | None, options: Options = DEFAULTS) -> Iterator[None]:
    """Normalize and draw random numbers as for the whole batch, of which this rank computes a slice.

    Args:
        split: the slices of the batch.
        draws: the context that draws for the whole batch; None if the call draws no random numbers.
        options: the user's choices.
    """
    norms = (
        batch_norm_over_ranks(split.world) if options.batch_norm == "global" else batch_norm_over_slice(split)
    )
    is_own = draws is not None and options.random == "per-worker"

    def again(number: int) -> Any:
        if draws is None:
            return as_slice(split, None, options)
        plan = draws.plan() if isinstance(draws, InferredDraws) else draws.known
        return as_slice(split, GlobalDraws(split, plan, number), options)

    with (
        within_slice(SliceContext(split, again, lambda: 0 if draws is None else draws.number)),
        norms,
        own_stream(split.world) if is_own else nullcontext(),
        nullcontext() if draws is None or is_own else draws,
    ):
        yield


def call_slice(
    forward: Forward,
    module: nn.Module,
    own: CallArguments,
    split: BatchSplit,
    *,
    draws: GlobalDraws | None,
    options: Options = DEFAULTS,
    reads: TorchFunctionMode | None = None,
) -> Any:
    """Return the outputs of this rank's slice, before they are gathered.

    Args:
        forward: runs the module.
        module: the module.
        own: the arguments, with this rank's slice of the samples.
        split: the slices of the batch.
        draws: the context that draws for the whole batch; None if the call draws no random numbers.
        options: the user's choices.
        reads: the context that watches what forward reads of its samples; None where nothing is watched.

    Raises:
        UsageError: the module writes into its arguments, of which this is a slice.
    """
    versions = versions_of(own)
    with as_slice(split, draws, options), reads or nullcontext():
        outputs = forward(module, *own.args, **own.kwargs)
    if versions_of(own) != versions:
        raise UsageError(
            f"{type(module).__name__} {WRITES_INPUT}, and a split call would do so in a slice. "
            "Keep its calls unsplit: samestep.batch_dim(model, dim=None)."
        )
    return outputs


WRITES_INPUT = "writes into what it is given"


def versions_of(given: CallArguments) -> list[int | None]:
    """Return how often each tensor among the arguments was written to."""
    return [version_of(tensor) for _, tensor in given.tensors()]
