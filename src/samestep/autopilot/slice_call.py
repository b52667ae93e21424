"""Runs a module on this rank's slice of a batch, with the statistics and draws of the whole batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from torch import nn
from torch.overrides import TorchFunctionMode

from samestep.autopilot.cut import Cut
from samestep.autopilot.draw_plans import DrawPlan
from samestep.autopilot.draws import FoundDraws, GlobalDraws
from samestep.autopilot.norms import over_all_ranks, over_each_slice
from samestep.autopilot.options import DEFAULTS, Options
from samestep.autopilot.plans import Given
from samestep.autopilot.recomputed import SliceContext, within_slice
from samestep.autopilot.state import version_of
from samestep.autopilot.streams import own_stream
from samestep.base.errors import UsageError

Forward: TypeAlias = Callable[..., Any]


@contextmanager
def as_slice(cut: Cut, draws: GlobalDraws | None, options: Options = DEFAULTS) -> Iterator[None]:
    """Normalize and draw random numbers as for the whole batch, of which this rank computes a slice.

    Args:
        cut: the slices of the batch.
        draws: the context that draws for the whole batch; None if the call draws no random numbers.
        options: the user's choices.
    """
    norms = over_all_ranks(cut.world) if options.batch_norm == "global" else over_each_slice(cut)
    is_own = draws is not None and options.random == "per-worker"

    def again(number: int) -> Any:
        if draws is None:
            return as_slice(cut, None, options)
        plan = draws.plan() if isinstance(draws, FoundDraws) else draws.known
        return as_slice(cut, GlobalDraws(cut, plan, number), options)

    with (
        within_slice(SliceContext(cut, again, lambda: 0 if draws is None else draws.number)),
        norms,
        own_stream(cut.world) if is_own else nullcontext(),
        nullcontext() if draws is None or is_own else draws,
    ):
        yield


def call_slice(
    forward: Forward,
    module: nn.Module,
    own: Given,
    cut: Cut,
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
        cut: the slices of the batch.
        draws: the context that draws for the whole batch; None if the call draws no random numbers.
        options: the user's choices.
        reads: the context that watches what forward reads of its samples; None where nothing is watched.

    Raises:
        UsageError: the module writes into its arguments, of which this is a slice.
    """
    versions = versions_of(own)
    with as_slice(cut, draws, options), reads or nullcontext():
        outputs = forward(module, *own.args, **own.kwargs)
    if versions_of(own) != versions:
        raise UsageError(
            f"{type(module).__name__} {WRITES_INPUT}, and a split call would do so in a slice. "
            "Keep its calls unsplit: samestep.split(model, dim=None)."
        )
    return outputs


WRITES_INPUT = "writes into what it is given"


def versions_of(given: Given) -> list[int | None]:
    """Return how often each tensor among the arguments was written to."""
    return [version_of(tensor) for _, tensor in given.tensors()]


def draws_by(plan: DrawPlan | None, cut: Cut) -> GlobalDraws | None:
    """Return the context that draws according to `plan`; None without a plan."""
    return None if plan is None else GlobalDraws(cut, plan)
