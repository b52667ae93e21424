"""Runs a serial script once, in this process; helpers compute slices of its model calls."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from samestep.autopilot.equivalence.effects import watch_effects
from samestep.autopilot.equivalence.unsplit_call import watched_logging
from samestep.autopilot.helpers.helper_processes import HelperProcesses
from samestep.autopilot.helpers.main_calls import Helpers, MainCalls
from samestep.autopilot.helpers.serving import computing_slices
from samestep.autopilot.helpers.split_node import retained_graphs
from samestep.autopilot.replicated_script import E, single_process_view
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.split_calls import splitting_calls_of_all_threads
from samestep.base.console import write_stderr
from samestep.base.errors import UsageError
from samestep.base.machine.c_libraries import keep_freed_memory
from samestep.base.machine.description import cpu_share
from samestep.ranks.world.solo import SoloWorld

_TIMEOUT_S = 60.0
"""Seconds that ranks wait for each other within a call, unless the user has chosen a time."""


def run_once(
    run: Callable[[], E], *, size: int, timeout_s: float = _TIMEOUT_S, options: Options = DEFAULTS
) -> E:
    """Run a script in this process, with the help of `size` - 1 further ones.

    Args:
        run: runs the script.
        size: the number of workers, this process included.
        timeout_s: seconds after which a helper that does not answer within a call is started again; 0 for
            no limit.
        options: the user's choices.
    """
    with own_device(options), single_process_view(SoloWorld()):
        with script_with_helpers(size, options, forks=True, timeout_s=timeout_s) as account:
            ended = run()
        write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
    return ended


@contextmanager
def workers(number: int | None = None) -> Iterator[None]:
    """Split the calls of models in the block between `number` processes, this one included.

    For notebooks, the interpreter's prompt and tests. A worker is a process of its own; the first block of a
    process takes some seconds to start them. At the end of the block a line for each model is printed: how
    many calls were split, and why others were not.

    Args:
        number: the number of workers; None for one for each core.

    Raises:
        UsageError: `number` is less than 1.
    """
    size = cpu_share().usable if number is None else number
    if size < 1:
        raise UsageError(f"samestep.workers({number}): give a number of workers of 1 or more")
    with script_with_helpers(size) as account:
        yield
    write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))


@contextmanager
def script_with_helpers(
    size: int, options: Options = DEFAULTS, *, forks: bool = False, timeout_s: float = _TIMEOUT_S
) -> Iterator[Account]:
    """Split the model calls of the block between this process and its helpers; yield the account of them.

    Args:
        size: the number of processes, this one included.
        options: the user's choices.
        forks: whether this process has one thread and can be forked.
        timeout_s: seconds until a helper that does not answer counts as lost; 0 for no limit.
    """
    account, before = Account(), torch.get_num_threads()
    if size == 1:
        yield account
        return
    keep_freed_memory()
    processes, process = HelperProcesses(forks=forks), os.getpid()
    try:
        # The launcher has given each worker its share of the cores, and this is one of them.
        threads = before if forks else max(1, before // size)
        all_threads = max(before, min(cpu_share().usable, threads * size))
        helpers = Helpers(
            processes, size, timeout_s=timeout_s or float("inf"), threads=threads, all_threads=all_threads
        )
        watch_effects()
        calls = MainCalls(helpers, account, options)
        with watched_logging(), computing_slices(), retained_graphs(), splitting_calls_of_all_threads(calls):
            yield account
        calls.end()
    finally:
        processes.close()
        if os.getpid() == process:
            torch.set_num_threads(before)
