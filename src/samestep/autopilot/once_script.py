"""Runs a serial script in this process; the other workers are helpers, which compute slices of its calls."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from samestep.autopilot.equivalence.effects import announced_files, watch_effects, watched_logging
from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.overlay_files import Overlay, writing_to
from samestep.autopilot.helpers.helper import computing_slices, serve, signals_left_to_main, silent
from samestep.autopilot.helpers.helper_processes import HelperProcesses, Helpers, StartedTeam
from samestep.autopilot.helpers.joined_team import helper_rank, main_rank
from samestep.autopilot.helpers.main_calls import MainCalls
from samestep.autopilot.helpers.operand_gradients import operand_gradients
from samestep.autopilot.helpers.signal_handlers import CallsBeforeHandlers, delayed_handlers
from samestep.autopilot.helpers.team import Team
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.script.seeds import fixed_seeds
from samestep.autopilot.split.bypassed_modules import note_unused_workers, plain_weights
from samestep.autopilot.split_calls import splitting_calls
from samestep.base import env
from samestep.base.console import write_stderr
from samestep.base.errors import PeerLost, UsageError
from samestep.base.folders import owned_folder
from samestep.base.machine.c_libraries import keep_freed_memory
from samestep.base.machine.description import cpu_share, number_of_workers
from samestep.hooks import declarations
from samestep.hooks.registry import attached, attached_all, instead, wrapping
from samestep.hooks.training_events import optimizer_steps
from samestep.launch.local.hosting import Ending
from samestep.launchers.registry import RANK_VARIABLES
from samestep.ranks.collectives.peer_connections import NotConnected
from samestep.ranks.world.join import join_team

_EXPLAINED = 3
"""Backward passes after which ``--explain`` ends the script: a GAN calls its generator in the second."""
T = TypeVar("T")
Stop: TypeAlias = Callable[[Account], None]
"""Prints what has been recorded, and ends this process."""
_FOREVER_S = 30 * 86400.0
"""Seconds that the ranks' connections are kept: a month, longer than jobs run, since a script may call no
model for hours."""
_TIMEOUT_S = 60.0
"""Seconds that ranks wait for each other within a call, unless the user has chosen a time: a guess."""


class Ended(Protocol):
    """The end of a script."""

    @property
    def exit_code(self) -> int:
        """The exit code of the script."""


E = TypeVar("E", bound=Ended)


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
    with own_device(options), script_with_helpers(size, options, forks=True, timeout_s=timeout_s) as account:
        return _ended(run, account, options, has_group=False)


def run_launched(
    run: Callable[[], Ending], *, timeout_s: float = _TIMEOUT_S, options: Options = DEFAULTS
) -> Ending:
    """Join the other workers of a launcher; run a script on rank 0, and help it on the others.

    Args:
        run: runs the script.
        timeout_s: see `run_once`.
        options: the user's choices.
    """
    limit_s = timeout_s or _FOREVER_S
    with own_device(options) as device, join_team(device=device, timeout_s=limit_s) as world:
        threads = torch.get_num_threads()
        if not world.place.is_main:
            # Ranks that are not connected leave all to the main rank.
            with signals_left_to_main(world.place), silent(world.place.rank), suppress(NotConnected):
                serve(*helper_rank(world), threads=threads)
            return Ending()
        account = Account(world.place.size)
        team = _unless_lost(lambda: main_rank(world, timeout_s=limit_s, threads=threads), account)
        with ExitStack() as stack:
            if team is not None:
                helped = splitting_between(team, account, options, threads=threads, before=threads)
                stack.enter_context(helped)
            return _ended(run, account, options, has_group=True)


def _ended(run: Callable[[], E], account: Account, options: Options, *, has_group: bool) -> E:
    """Run a script as the user has asked for, and report what was split; return its end."""
    with ExitStack() as stack:
        stack.enter_context(without_ranks(has_group=has_group))
        stop = None
        if options.explain:
            stop = stack.enter_context(_explaining())
        elif options.scratch is not None:
            stack.enter_context(writing_to(options.scratch))
        stack.enter_context(_counted_backwards(account, stop))
        if options.seed is not None:
            stack.enter_context(fixed_seeds(options.seed))
        process = os.getpid()
        ended = run()
        if os.getpid() != process:  # a child that the script forked
            return ended
        if stop is not None:
            stop(account)
    if not ended.exit_code:
        note_unused_workers(account)
    write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
    return ended


@contextmanager
def without_ranks(*, has_group: bool = False) -> Iterator[None]:
    """Hide the launcher's variables from the script of the block, and the process group, if there is one."""
    is_hidden = True

    def exists(original: Callable[[], bool]) -> bool:
        return not is_hidden and original()

    def refused(*_: Any, **_named: Any) -> None:
        raise UsageError(
            "the script creates a process group itself, so it is no serial script; run it with --mode native."
        )

    def show() -> None:
        nonlocal is_hidden
        is_hidden = False  # a replacement of the script may call `exists` after the block

    with ExitStack() as stack:
        stack.callback(show)
        if has_group:
            stack.enter_context(attached(declarations.GROUP_EXISTS, wrapping(exists)))
            stack.enter_context(attached_all(dict.fromkeys(declarations.CREATED_GROUP, instead(refused))))
        stack.enter_context(env.hidden(RANK_VARIABLES))
        yield


@contextmanager
def _explaining() -> Iterator[Stop]:
    """Suppress what a script prints and writes; yield the function that reports and ends the process."""
    stderr = os.dup(2)

    def stop(overlay: Overlay, account: Account) -> None:
        note_unused_workers(account)
        lines = [
            f"--explain ends a script after {_EXPLAINED} backward passes, and discards its output and files"
        ]
        lines += account.lines() + [f"{path}: would be written" for path in _shown(overlay.made)]
        os.write(stderr, "".join(f"samestep: {line}\n" for line in lines).encode())
        os._exit(0)

    try:
        with owned_folder() as scratch, silenced():
            overlay = Overlay(scratch)
            with redirected(overlay):
                yield partial(stop, overlay)
    finally:
        os.close(stderr)


def _shown(made: list[str]) -> list[str]:
    """Return the paths as the script may have written them, without temporary files."""
    here, temporary = f"{Path.cwd()}/", tempfile.gettempdir()
    files = [path for path in made if path.startswith(here) or not path.startswith(temporary)]
    return [path.removeprefix(here) for path in dict.fromkeys(files)]


@contextmanager
def silenced() -> Iterator[None]:
    """Discard stdout and stderr of this process, also of C code; errors are reported elsewhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    kept = []
    try:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            with suppress(Exception):  # a stream may be closed, or the script's own
                stream.flush()
            kept.append((number, os.dup(number)))
            os.dup2(null, number)
        yield
    finally:
        for number, saved in kept:
            with suppress(Exception):
                (sys.stdout if number == 1 else sys.stderr).flush()
            os.dup2(saved, number)
            os.close(saved)
        os.close(null)


@contextmanager
def _counted_backwards(account: Account, stop: Stop | None) -> Iterator[None]:
    """Count the backward passes of the script; call `stop` after the first `_EXPLAINED`."""

    def backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not account.backwards:
            account.has_called = bool(account.split or account.counts)
            if not account.split:
                account.plain_weights = plain_weights(args[0] if args else kwargs["tensors"])
        original(*args, **kwargs)
        account.backwards += 1
        if stop is not None and account.backwards == _EXPLAINED:
            stop(account)

    with attached(declarations.COUNTED_BACKWARD, wrapping(backward)):
        yield


@contextmanager
def workers(number: int | None = None) -> Iterator[None]:
    """Split the calls of models in the block between `number` processes, this one included.

    For notebooks, the interpreter's prompt and tests. A worker is a process of its own; the first block of a
    process takes some seconds to start them. At the end of the block a line for each model is printed: how
    many calls were split, and why others were not.

    Args:
        number: the number of workers; None for one for each core.

    Raises:
        UsageError: `number` is no integer of 1 or more, or more than the memory can hold.
    """
    asked = cpu_share().usable if number is None else number
    size = number_of_workers(asked, f"samestep.workers({asked!r})")
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
    account, before = Account(size), torch.get_num_threads()
    if size == 1:
        yield account
        return
    # The launcher has given each worker its share of the cores, and this is one of them.
    threads = before if forks else max(1, before // size)
    processes = _unless_lost(lambda: HelperProcesses(forks=forks), account)
    if processes is None:
        yield account
        return
    team = StartedTeam(processes, size, timeout_s=timeout_s or float("inf"), threads=threads)
    with splitting_between(team, account, options, threads=threads, before=before):
        yield account


@contextmanager
def splitting_between(
    team: Team, account: Account, options: Options, *, threads: int, before: int
) -> Iterator[None]:
    """Split the model calls of the block between the ranks of a team, of which this is the main rank.

    Args:
        team: the team, which ends with the block.
        account: collects what is split.
        options: the user's choices.
        threads: threads with which each rank computes its slices.
        before: threads of this process beside that.
    """
    keep_freed_memory()
    process = os.getpid()
    try:
        all_threads = max(before, min(cpu_share().usable, threads * team.size))
        helpers = _unless_lost(lambda: Helpers(team, threads=threads, all_threads=all_threads), account)
        if helpers is None:
            yield
            return
        watch_effects()
        calls = MainCalls(helpers, account, options)
        with (
            closing(helpers),
            delayed_handlers() as handlers,
            watched_logging(),
            announced_files(),
            calls.cast_weights.followed(),
            computing_slices(),
            operand_gradients(),
            optimizer_steps(account.steps.after_step),
            splitting_calls(CallsBeforeHandlers(calls, handlers)),
        ):
            yield
            calls.end()
    finally:
        if os.getpid() == process:  # and not one that the script has forked
            team.close()
            torch.set_num_threads(before)


def _unless_lost(start: Callable[[], T], account: Account) -> T | None:
    """Return what starts helpers; None, and a line on stderr, if they cannot be had."""
    try:
        return start()
    except (OSError, PeerLost, NotConnected) as error:
        write_stderr(f"samestep: no helper can be started ({error}): one process computes all calls.\n")
        account.size = 1  # else the script would be said to have left the others unused
        return None
