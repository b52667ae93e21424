"""Prepares a process for slices of calls, and serves as a helper in it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from samestep.autopilot.equivalence.effects import watch_effects
from samestep.autopilot.helpers.helper import Helper
from samestep.autopilot.helpers.slices import RankSlices, SliceGradients
from samestep.autopilot.helpers.team import TeamMemory
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.gradients import averaging_grad
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import slice_aware_functions
from samestep.autopilot.split.training_calls import detected_training
from samestep.autopilot.split_calls import (
    current_gradients,
    intercepted_calls,
    splitting_calls_of_all_threads,
)
from samestep.base.machine.c_libraries import keep_freed_memory


def serve(team: TeamMemory, rank: int) -> None:
    """Compute slices of the main rank's calls until its script has ended."""
    torch.set_num_threads(team.threads)
    keep_freed_memory()
    world, line = team.helper(rank)
    slices = RankSlices(world, SliceGradients(world), copies=True)
    with computing_slices(), splitting_calls_of_all_threads(_HelperCalls(slices)):
        watch_effects(refuses_all=True)
        Helper(slices, line).serve()


class _HelperCalls:
    """Calls of modules on a helper, which are parts of calls that the main rank splits."""

    def __init__(self, slices: RankSlices) -> None:
        self.gradients = slices.gradients

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module as it is."""
        return forward(module, *args, **kwargs)

    def own(self, total: int) -> int:
        """Return the number of samples in a call of `total` samples, which is a slice."""
        return total


@contextmanager
def computing_slices() -> Iterator[None]:
    """Let the calls of the block be slices of calls."""
    with ExitStack() as stack:
        for context in (
            intercepted_calls(),
            detected_training(),
            batch_norm_of_slices(),
            slice_aware_functions(),
            averaging_grad(current_gradients),
        ):
            stack.enter_context(context)
        yield
