"""Runs a module on this rank's slice of a batch, with the statistics and draws of the whole batch.

With ``--random per-worker`` each rank draws its own random numbers, in the shape of its slice. This is faster
if activations are large, but as with native data parallelism the numbers depend on the number of workers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from samestep.autopilot.script.call_account import KEEP_UNSPLIT
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.split.batch_norms import batch_norm_over_ranks, batch_norm_over_slice
from samestep.autopilot.split.call_plans import CallArguments
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_context import SliceContext, current_slice
from samestep.autopilot.state.saved_state import version_of
from samestep.base.context_values import bound
from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks.random_draws import RngState
from samestep.ranks.world.protocol import World

Forward: TypeAlias = Callable[..., Any]
WRITES_INPUT = "writes into what it is given"


@contextmanager
def as_slice(split: BatchSplit, draws: GlobalDraws | None, options: Options = DEFAULTS) -> Iterator[None]:
    """Normalize and draw random numbers as for the whole batch, of which this rank computes a slice."""
    norms = (
        batch_norm_over_ranks(split.world) if options.batch_norm == "global" else batch_norm_over_slice(split)
    )
    is_own = draws is not None and options.random == "per-worker"

    def again(number: int) -> Any:
        if draws is None:
            return as_slice(split, None, options)
        return as_slice(split, GlobalDraws(split, draws.plan(), number), options)

    with (
        bound(current_slice, SliceContext(split, again, lambda: 0 if draws is None else draws.number)),
        norms,
        _own_stream(split.world) if is_own else nullcontext(),
        nullcontext() if draws is None or is_own else draws,
    ):
        yield


@contextmanager
def _own_stream(world: World) -> Iterator[None]:
    """Let torch draw from a stream of this rank and this block; restore the common stream at the end.

    The stream depends on the state of the common one and on the rank, so a run can be repeated. Python's
    `random` and NumPy stay common, because modules use them for decisions, such as to skip a layer.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))  # advances the common stream, equally on all ranks
    own = int(np.random.SeedSequence([seed, world.place.rank]).generate_state(1, np.uint64)[0] >> 1)
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices, device_type=world.device.type):
        torch.manual_seed(own)
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
    """Return the ungathered outputs of a slice; raise `UsageError` if it writes into its arguments."""
    versions = versions_of(own)
    with as_slice(split, draws, options), reads or nullcontext():
        outputs = forward(module, *own.args, **own.kwargs)
    if versions_of(own) != versions:
        raise UsageError(
            f"{type(module).__name__} {WRITES_INPUT}, and a split call would do so in a slice. {KEEP_UNSPLIT}"
        )
    return outputs


def check_draws(name: str, draws: GlobalDraws | None, before: RngState | None, device: torch.device) -> None:
    """Raise `OutOfStep` if a call has drawn random numbers in another way than in its equivalence check.

    `before` is the state of the generators before the call, if its check drew no random numbers.
    """
    if before is not None and not before.same(RngState.now(device)):
        raise OutOfStep(
            f"{name}, or another thread of the script during its call, drew random numbers, and it drew none "
            f"in its equivalence check: the workers' random streams now differ. {KEEP_UNSPLIT}"
        )
    if draws is not None:
        draws.end()
    if draws is not None and draws.unknown:
        raise OutOfStep(
            f"{name} drew random numbers in another way than in its equivalence check "
            f"({'; '.join(sorted(draws.unknown))}). {KEEP_UNSPLIT}"
        )


def versions_of(given: CallArguments) -> list[int | None]:
    """Return how often each tensor among the arguments was written to."""
    return [version_of(tensor) for _, tensor in given.tensors()]
