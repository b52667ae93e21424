"""Runs a script in a kept process, and restores the state of the process that the script changes."""

import io
import logging
import os
import random
import re
import signal
import sys
import warnings
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import torch

from samestep.autopilot.helpers.helper import serve
from samestep.autopilot.helpers.joined_team import helper_rank, main_rank
from samestep.autopilot.once_script import script_with_helpers, splitting_between
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import Options
from samestep.launch.job import Program
from samestep.launch.local.hosting import host
from support.strict_device import StrictDevice

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")

ALL_SPLIT = Options(short_calls="split")
"""Options by which the same calls are split on a busy machine."""
READS = "samestep reads its device at"
"""The beginning of a line of the account about a split call on a strict device."""


def run_launched_script(world, path, arguments, folder, runs=1, options=ALL_SPLIT, may_share_memory=True):
    """Run a script on rank 0 of `world`, which the others help; return what `run_script` does, or None."""
    if not world.place.is_main:
        for _ in range(runs):
            with restored_process_state(), own_device(options):
                serve(*helper_rank(world), threads=1)
        return None

    @contextmanager
    def with_team(options):
        account = Account()
        team = main_rank(world, timeout_s=60.0, threads=1, may_share_memory=may_share_memory)
        with splitting_between(team, account, options, threads=1, before=1):
            yield account

    return run_script(None, path, arguments, folder, runs, options, account_of=with_team)


def run_script(
    _, path, arguments, folder, runs=1, options=ALL_SPLIT, is_strict=False, helpers=0, account_of=None
):
    """Run a script in this process, in `folder`.

    Args:
        path: the script.
        arguments: its arguments.
        folder: its working directory.
        runs: how often it runs.
        options: the user's choices.
        is_strict: whether the CPU is as strict as a CUDA device.
        helpers: the number of helpers that compute slices of its calls.
        account_of: returns a context that splits its calls and yields their account; None for helpers.

    Returns:
        stdout, the lines of the account, and the traceback if it failed.
    """
    printed, lines, device = io.StringIO(), [], StrictDevice()
    if account_of is None:
        account_of = partial(script_with_helpers, 1 + helpers, forks=True)
    for _ in range(runs):
        strictly = device() if is_strict else nullcontext()
        with restored_process_state(), redirect_stdout(printed), own_device(options), strictly:
            os.chdir(folder)
            with account_of(options=options) as account:
                # With a callback the traceback of a hook of torch's is returned, not printed.
                ending = host(Program(target=str(path), args=tuple(arguments)), lambda _: None)
        lines += account.lines()
        lines += sorted({f"{READS} {place}" for place in device.reads})
        if device.lost:
            return printed.getvalue(), lines, f"the device was lost by {device.lost}"
        if ending.exit_code:
            trace = ending.traceback or f"exit code {ending.exit_code}: {ending.error}: {ending.message}"
            return printed.getvalue(), lines, trace
    return printed.getvalue(), lines, ""


@contextmanager
def restored_process_state():
    """Restore the state of the process that a script changes, and hide the changes of earlier scripts."""
    found = sys.argv, sys.path[:], sys.modules["__main__"], Path.cwd(), torch.get_default_dtype()
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()
    handlers, level = logging.root.handlers[:], logging.root.level
    # A handler of SIGTERM that a script leaves would keep the workers of a later script's pool from ending.
    ends = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    logging.root.handlers[:] = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own
        try:
            yield
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = found[:3]
            os.chdir(found[3])
            for number, handler in ends.items():
                signal.signal(number, handler)
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
            torch.set_default_dtype(found[4])
            torch.set_grad_enabled(True)
            torch.set_rng_state(drawn[0])
            random.setstate(drawn[1])
            np.random.set_state(drawn[2])


def difference(one, other, *, leave_out=(), digits=9):
    """Return the first lines in which two outputs differ by more than their last digits, or None."""
    left, right = ([line for line in text.splitlines() if _kept(line, leave_out)] for text in (one, other))
    for a, b in zip(left, right, strict=False):
        if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
            return a, b
        for p, q in zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True):
            # Written so that nan is unlike any number.
            if p != q and not abs(float(p) - float(q)) <= 10.0**-digits * max(1.0, abs(float(p))):
                return a, b
    return None if len(left) == len(right) else (f"{len(left)} lines", f"{len(right)} lines")


def _kept(line, patterns):
    return not any(re.search(pattern, line) for pattern in patterns)
