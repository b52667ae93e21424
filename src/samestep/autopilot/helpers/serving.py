"""Prepares a process for slices of calls, and serves as a helper in it."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn

from samestep.autopilot.equivalence.effects import watch_effects
from samestep.autopilot.helpers.helper import Helper
from samestep.autopilot.helpers.messages import LineOfHelper
from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.helpers.team import TeamWorld
from samestep.autopilot.split.gradients import SliceGradients, averaging_grad, detected_training
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import batch_norm_of_slices, slice_aware_functions
from samestep.autopilot.split_calls import (
    current_gradients,
    intercepted_calls,
    splitting_calls,
)
from samestep.base.errors import PeerLost
from samestep.base.machine.c_libraries import keep_freed_memory


def serve(world: TeamWorld, line: LineOfHelper, *, threads: int) -> None:
    """Compute slices of the main rank's calls until its script has ended."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    slices = RankSlices(world, SliceGradients(world), copies=True)
    with computing_slices(), splitting_calls(_HelperCalls(slices)):
        watch_effects(refuses_all=True)
        try:
            with suppress(PeerLost):
                Helper(slices, line).serve()
        finally:
            watch_effects()
    line.close()


@contextmanager
def silent(rank: int) -> Iterator[None]:
    """Print nothing that a forward prints in the block, since the main rank prints it, too.

    An error of the block ends it, and is printed: with its traceback if it is a fault of samestep.
    """
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):
            stream.flush()
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        yield
    except (OSError, MemoryError) as error:
        os.write(stderr, f"samestep: helper {rank} has ended ({type(error).__name__}: {error})\n".encode())
    except BaseException:  # noqa: BLE001 - the main rank computes what this one does not
        os.write(stderr, f"samestep: helper {rank} has failed\n{traceback.format_exc()}".encode())


class _HelperCalls:
    """Calls of modules on a helper, which are parts of calls that the main rank splits."""

    def __init__(self, slices: RankSlices) -> None:
        self.gradients = slices.gradients

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module as it is."""
        return forward(module, *args, **kwargs)


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
