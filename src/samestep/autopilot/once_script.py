"""Runs a serial script once, on the main rank; the other ranks are its helpers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from samestep.autopilot.equivalence.effects import watch_effects
from samestep.autopilot.helpers.helper import Helper
from samestep.autopilot.helpers.helper_processes import HelperProcesses
from samestep.autopilot.helpers.main_calls import Helpers, MainCalls
from samestep.autopilot.helpers.slices import RankSlices, SliceGradients
from samestep.autopilot.helpers.split_node import retained_graphs
from samestep.autopilot.helpers.team import TeamMemory
from samestep.autopilot.replicated_script import E, single_process_view
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import DEFAULTS, Options
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
from samestep.base.console import write_stderr
from samestep.base.machine.c_libraries import keep_freed_memory
from samestep.ranks.world.solo import SoloWorld

_TIMEOUT_S = 1800.0
"""Seconds that ranks wait for each other within a call."""


def run_once(run: Callable[[], E], *, size: int, options: Options = DEFAULTS) -> E:
    """Run a script in this process, with the help of `size` - 1 further ones."""
    with own_device(options):
        keep_freed_memory()
        with script_with_helpers(size, options) as account:
            ended = run()
        write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
    return ended


@contextmanager
def script_with_helpers(size: int, options: Options = DEFAULTS) -> Iterator[Account]:
    """Split the model calls of the block between this process and its helpers."""
    processes = HelperProcesses(_serve)
    try:
        watch_effects()
        helpers, account = Helpers(processes, size, timeout_s=_TIMEOUT_S), Account()
        with _computing_slices():
            calls = MainCalls(helpers, account, options)
            with retained_graphs(), single_process_view(SoloWorld()), splitting_calls_of_all_threads(calls):
                yield account
    finally:
        processes.close()


def _serve(team: TeamMemory, rank: int) -> None:
    """Compute slices of the main rank's calls until its script has ended."""
    world, line = team.helper(rank)
    watch_effects(refuses_all=True)
    slices = RankSlices(world, SliceGradients(world), copies=True)
    with _computing_slices(), splitting_calls_of_all_threads(_HelperCalls(slices)):
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
def _computing_slices() -> Iterator[None]:
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
