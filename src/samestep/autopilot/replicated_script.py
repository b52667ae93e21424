"""Runs a serial script on all ranks, as a replicated script: same steps, same results, one set of outputs."""

import atexit
import builtins
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot.end_check import EndCheck, checked_exits
from samestep.autopilot.loading.load_choice import ScriptLoaders
from samestep.autopilot.loading.loader_split import Slicing, losses_of_slices
from samestep.autopilot.loading.loaders import intercepted_loaders, load_alone, sharded_loading
from samestep.autopilot.network import shared_network
from samestep.autopilot.script.agreed_signals import synchronized_signals
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.common_times import common_times
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.failed_calls import out_of_memory_is_final
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.script.rank_output import Stop, explaining, writing_once, writing_to
from samestep.autopilot.script.script_threads import await_threads, ended_by_threads
from samestep.autopilot.script.seeds import equal_hashes, equal_seeds
from samestep.autopilot.script.shared_folder import common_folder
from samestep.autopilot.script.trackers import disabled_trackers
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.bypassed_modules import check_split, plain_weights
from samestep.autopilot.split.gradients import Gradients, averaging_grad
from samestep.autopilot.split.slice_context import slice_aware_functions
from samestep.autopilot.split.training_calls import detected_training
from samestep.autopilot.split_calls import (
    CallSplitter,
    compute_alone,
    current_gradients,
    intercepted_calls,
    splitting_calls,
)
from samestep.base import env
from samestep.base.console import write_stderr
from samestep.base.errors import UsageError
from samestep.base.machine.c_libraries import keep_freed_memory
from samestep.base.polling import holds_within
from samestep.hooks import declarations
from samestep.hooks.registry import attached, attached_all, instead, wrapping
from samestep.launch.local.hosting import release_program
from samestep.launchers.registry import RANK_VARIABLES
from samestep.ranks.collectives.algorithms import ByAlgorithm, by_algorithm
from samestep.ranks.collectives.direct_world import low_latency
from samestep.ranks.hang.watchdog import is_waiting
from samestep.ranks.world.join import join
from samestep.ranks.world.protocol import World

BACKWARDS_UNTIL_CHECK = 3
"""Backward passes after which a script without any split call is refused.

Not after the first: a GAN calls its generator in the second, a first batch may be smaller than the number of
ranks, and a model may be trained in another way after a warm-up. The output of such a script is right until
then, because unsplit calls compute the same as one rank.
"""
_PATIENCE_S = 30.0
"""Seconds that a rank that ends with a code waits for rank 0, which may wait for that rank."""
_WRITTEN = "samestep/written"
_RANKS = ("LOCAL_RANK", "RANK")  # variables that a library sets for each rank that it starts
_STARTS_RANKS = "the script {does}, so it is no serial script; run it with --mode native."


class Ending(Protocol):
    """The end of a script."""

    @property
    def exit_code(self) -> int:
        """The exit code of the script."""

    @property
    def was_asked_for(self) -> bool:
        """Whether the script has passed this code to `sys.exit`, and it is not 0."""

    @property
    def is_from_outside(self) -> bool:
        """Whether samestep or Ctrl-C ended the script, rather than its own code."""


E = TypeVar("E", bound=Ending)
_active: list[ExitStack] = []  # the contexts of each replicated script of this process
_in_forks: list[Callable[[], None]] = []  # called in each process that a script forks
os.register_at_fork(after_in_child=lambda: [call() for call in _in_forks])
_inherited: list[ExitStack] = []
"""The contexts of the parent, in a process that the script forked; kept, because freeing closes them."""


def run_replicated(run: Callable[[], E], *, guarded: bool = True, options: Options = DEFAULTS) -> E:
    """Join the other workers, and run a script as a replicated script; return its end.

    Raises:
        UsageError: no call was split, so each worker has computed all of it; only if `guarded`.
        OutOfStep: the ranks differ at the end of the script.
    """
    process = os.getpid()
    with own_device(options) as device, join(device=device, cpu_tensors=True) as world:
        if world.device.type == "cpu":
            keep_freed_memory()
        with replicated_script(world, options) as account:
            gradients = current_gradients()
            check = None
            if gradients is not None and not options.explain:
                check = EndCheck(
                    world,
                    gradients,
                    account,
                    timeout_s=world.timeout_s,
                    # A shard of a batch that draws while it is loaded draws its own numbers.
                    compares_streams=options.load != "shared" and options.split != "loader",
                )
            with nullcontext() if check is None else checked_exits(check):
                ended = run()
                # While the script is still replicated: threads and exit functions may write files.
                await_threads(failed=ended.exit_code != 0 and not ended.was_asked_for)
                atexit._run_exitfuncs()  # noqa: SLF001 - there is no public spelling
            if check is not None:
                check.run(ended.exit_code)
            release_program()  # its finalizers may write, too
        if os.getpid() != process:  # a child that the script forked; its parent does the rest
            return ended
        if world.place.size > 1 and guarded and not ended.exit_code:
            check_split(account, world.place.size)
        if world.place.is_main:
            write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
        if world.place.size > 1:
            _await_main_flush(world, waits=ended.exit_code != 0 and not ended.is_from_outside)
    return ended


def _await_main_flush(world: World, *, waits: bool) -> None:
    """Let rank 0 flush its output before the launcher terminates the job because a rank ends with a code.

    This uses no collective: a rank may end alone, while others wait for it in a collective.
    """
    store = _get_default_store()
    if not world.place.is_main:
        with suppress(RuntimeError):  # rank 0 has exited, and its store is gone
            if waits:  # if rank 0 waits in a collective, it waits for this rank
                holds_within(lambda: store.check([_WRITTEN]) or is_waiting(0), _PATIENCE_S)
        return
    with suppress(Exception):  # the script may have closed or replaced it
        sys.stdout.flush()
    with suppress(RuntimeError):
        store.set(_WRITTEN, "")


@contextmanager
def replicated_script(world: World, options: Options = DEFAULTS) -> Iterator[Account]:
    """Replicate the script of the block over all ranks; yield the account of its calls.

    On one rank, only the process group and the launcher's variables are hidden, and `options.scratch` has
    an effect.
    """
    account = Account()
    if world.place.size == 1:
        with _on_one_rank(world, options):
            yield account
        return
    world = low_latency(world)
    with ExitStack() as stack:
        gradients = Gradients(_gradient_world(world, options))
        stack.callback(gradients.detach)
        advance = stack.enter_context(common_times(world))
        stack.enter_context(single_process_view(world))
        stack.enter_context(disabled_trackers(world.place.rank))
        stack.enter_context(equal_hashes(world))
        common = stack.enter_context(common_folder(world))
        stack.enter_context(shared_network(world, common))
        if options.explain:
            stop = stack.enter_context(explaining(world, undo_replication))
        else:
            stack.enter_context(writing_once(world, options, common))
            stop = partial(check_split, size=world.place.size)
        stack.enter_context(equal_seeds(world, options.seed))
        for context in (
            intercepted_calls(),
            detected_training(),
            batch_norm_of_slices(),
            slice_aware_functions(),
        ):
            stack.enter_context(context)
        stack.enter_context(averaging_grad(current_gradients))
        slicing = Slicing(world, account, options) if options.split == "loader" else None
        if slicing is not None:
            stack.enter_context(losses_of_slices(slicing, gradients))
        before = stack.enter_context(synchronized_signals(world)).agree, advance
        splitter = CallSplitter(world, gradients, account, options, slicing, before)
        stack.enter_context(splitting_calls(splitter))
        stack.enter_context(intercepted_loaders())
        stack.enter_context(sharded_loading(ScriptLoaders(world, account, options.load), slicing))
        stack.enter_context(after_some_steps(account, stop))
        stack.enter_context(_listed(_active, stack))
        stack.enter_context(_listed(_in_forks, partial(_compute_alone, gradients, slicing)))
        process = os.getpid()
        yield account
        if os.getpid() != process:  # the parent undoes its contexts
            _inherited.append(stack.pop_all())
        elif options.explain:
            stop(account)


def _compute_alone(gradients: Gradients, slicing: Slicing | None) -> None:
    """Communicate with no other rank, in a process that the script has forked."""
    compute_alone()
    load_alone()
    gradients.detach_in_child()
    if slicing is not None:
        slicing.split = None


@contextmanager
def _listed(entries: list[Any], entry: Any) -> Iterator[None]:
    entries.append(entry)
    try:
        yield
    finally:
        entries.remove(entry)


@contextmanager
def _on_one_rank(world: World, options: Options) -> Iterator[None]:
    writing = nullcontext() if options.scratch is None else writing_to(options.scratch / "0")
    with single_process_view(world), writing:
        yield


def undo_replication() -> None:
    """Undo all changes of `replicated_script`, in a process that is about to end.

    Ranks do not wait for each other here, and no code of the script runs afterwards.
    """
    while _active:
        _active[-1].close()


def _gradient_world(world: World, options: Options) -> World:
    """Return the world for gradient all-reduces; rank 0 prints the algorithm if the user has chosen one."""
    if options.algorithm is None:
        return world
    carrier = by_algorithm(world, options.algorithm)
    if isinstance(carrier, ByAlgorithm) and world.place.is_main:
        sys.stderr.write(f"samestep: gradients: all-reduce by {carrier.crossovers.describe()}\n")
    return carrier


@contextmanager
def after_some_steps(account: Account, then: Stop) -> Iterator[None]:
    """Count the backward passes of a script, and call `then` after the first `BACKWARDS_UNTIL_CHECK`."""
    process = os.getpid()

    def backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not account.backwards and not account.split:
            account.plain_weights = plain_weights(args[0] if args else kwargs["tensors"])
            account.thread = "" if current_gradients() is not None else threading.current_thread().name
        with out_of_memory_is_final("backward"):
            original(*args, **kwargs)
        if os.getpid() != process:  # forked by the script
            return
        account.backwards += 1
        if account.backwards == BACKWARDS_UNTIL_CHECK:
            then(account)

    with attached(declarations.COUNTED_BACKWARD, wrapping(backward)):
        yield


def _answered(read: Callable[[object], str], prompt: object) -> tuple[str, bool]:
    """Return the line that `input` reads, and whether the standard input has ended instead."""
    try:
        return read(prompt), False
    except EOFError:
        return "", True


@contextmanager
def single_process_view(world: World) -> Iterator[None]:
    """Hide the process group and the launcher's variables, and let rank 0 read `input` for all ranks."""
    original, process = builtins.input, os.getpid()

    def once(prompt: object = "") -> str:
        if os.getpid() != process:  # forked by the script
            return original(prompt)
        if threading.current_thread() is not threading.main_thread() and world.place.size > 1:
            raise UsageError(
                "the script calls input() in another thread than the main one, so workers would get the "
                "answer at different steps. Call it in the main thread, or run with -n 1."
            )
        answer, has_ended = world.on_main(partial(_answered, original, prompt))
        if has_ended:  # on all ranks, since the script may catch it
            raise EOFError("EOF when reading a line")
        return answer

    is_hidden = True

    def exists(original: Callable[[], bool]) -> bool:
        return not is_hidden and original()

    def refused(*_: Any, **_named: Any) -> None:
        raise UsageError(_STARTS_RANKS.format(does="creates a process group itself"))

    def started(original: Callable[..., None], process: Any, *args: Any, **kwargs: Any) -> None:
        variables, own = kwargs.get("env") or {}, env.snapshot()
        if is_hidden and any(name in variables and variables[name] != own.get(name) for name in _RANKS):
            raise UsageError(_STARTS_RANKS.format(does="starts further ranks itself"))
        original(process, *args, **kwargs)

    def show() -> None:
        nonlocal is_hidden
        is_hidden = False  # a replacement of the script may call `exists` after the block

    with ExitStack() as stack:
        stack.callback(show)
        stack.enter_context(attached(declarations.GROUP_EXISTS, wrapping(exists)))
        stack.enter_context(attached_all(dict.fromkeys(declarations.CREATED_GROUP, instead(refused))))
        stack.enter_context(attached(declarations.STARTED_PROCESS, wrapping(started)))
        stack.enter_context(env.hidden(RANK_VARIABLES))
        stack.enter_context(attached(declarations.INPUT, instead(once)))
        stack.enter_context(ended_by_threads())
        yield
