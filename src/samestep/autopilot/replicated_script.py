"""Runs a serial script on all ranks, as a replicated script: same steps, same results, one set of outputs."""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot.end_check import EndCheck, checked_exits
from samestep.autopilot.explain import Stop, explaining
from samestep.autopilot.files.folder_listings import ReplayedListings
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.kept_calls import originals_kept
from samestep.autopilot.files.kept_originals import OriginalKeeper
from samestep.autopilot.files.overlay_calls import overlaid, writing_to
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.files.sibling_ranks import SiblingRanks
from samestep.autopilot.loading.load_choice import ScriptLoaders
from samestep.autopilot.loading.loader_split import Slicing, losses_of_slices
from samestep.autopilot.loading.loaders import intercepted_loaders, sharded_loading
from samestep.autopilot.network.clients import shared_network
from samestep.autopilot.script.agreed_signals import synchronized_signals
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.hash_seed import equal_hashes
from samestep.autopilot.script.hidden_ranks import single_process_view
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.script.out_of_memory import out_of_memory_is_final
from samestep.autopilot.script.rank_output import silenced
from samestep.autopilot.script.seeds import equal_seeds
from samestep.autopilot.script.shared_folder import CommonFolder, common_folder
from samestep.autopilot.split.activation_checkpoints import checkpoints_of_slices
from samestep.autopilot.split.batch_norms import batch_norm_of_slices
from samestep.autopilot.split.bypassed_modules import advice, plain_weights
from samestep.autopilot.split.gradients import Gradients, averaging_grad
from samestep.autopilot.split.packed_sequences import sequences_of_slices
from samestep.autopilot.split_calls import CallSplitter, current_gradients, intercepted_calls, splitting_calls
from samestep.base.owned_folders import owned_folder
from samestep.base.polling import holds_within
from samestep.base.standard_streams import write_stderr
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.observe.hang.watchdog import is_waiting
from samestep.ranks.collectives.chosen_algorithms import ByAlgorithm, by_algorithm
from samestep.ranks.collectives.shared_memory_world import on_one_host
from samestep.ranks.world.join import join
from samestep.ranks.world.protocol import World

BACKWARDS_UNTIL_CHECK = 3
"""Backward passes after which a script without any split call is refused.

Not after the first: a GAN calls its generator in the second, a first batch may be smaller than the number of
ranks, and a model may be trained in another way after a warm-up. The output of such a script is right until
then, because unsplit calls compute the same as one rank.
"""
_PATIENCE_S = 30.0
"""Seconds that a rank that exits with a code waits for rank 0, which may wait for that rank."""
_WRITTEN = "samestep/written"


class Ending(Protocol):
    """The end of a script."""

    @property
    def exit_code(self) -> int:
        """The exit code of the script."""

    @property
    def was_asked_for(self) -> bool:
        """Whether the script has passed this code to `sys.exit`, and it is not 0."""


E = TypeVar("E", bound=Ending)
_active: list[ExitStack] = []
"""The contexts of each replicated script of this process."""
_inherited: list[ExitStack] = []
"""The contexts of the parent, in a process that the script forked; kept, because freeing closes them."""


def run_replicated(run: Callable[[], E], *, guarded: bool = True, options: Options = DEFAULTS) -> E:
    """Join the other workers, and run a script as a replicated script; return its end.

    Args:
        run: runs the script.
        guarded: whether a script without any split call is an error.
        options: the user's choices.

    Raises:
        UsageError: no call was split, so each worker has computed all of it.
        OutOfStep: the ranks differ at the end of the script.
    """
    process = os.getpid()
    with own_device(options) as device, join(device=device, cpu_tensors=True) as world:
        with replicated_script(world, options) as account:
            check = _end_check(world, account, options)
            with nullcontext() if check is None else checked_exits(check):
                ended = run()
                atexit._run_exitfuncs()  # noqa: SLF001 - while the script is still replicated
            if check is not None:
                check.run(ended.exit_code)
        if os.getpid() != process:  # a child that the script forked; its parent does the rest
            return ended
        if world.place.size > 1 and guarded and not ended.exit_code:
            account.check_split(world.place.size, advice)
        if world.place.is_main:
            write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
        if world.place.size > 1:
            _await_main_flush(world, waits=ended.was_asked_for)
    return ended


def _end_check(world: World, account: Account, options: Options) -> EndCheck | None:
    """Return the comparison at the end of the script; None for one rank, or with ``--explain``."""
    gradients = current_gradients()
    if gradients is None or options.explain:
        return None
    return EndCheck(world, gradients, account, timeout_s=world.timeout_s)


def _await_main_flush(world: World, *, waits: bool) -> None:
    """Let rank 0 flush its output before the launcher terminates the job because a rank exits with a code.

    This uses no collective: a rank may exit alone, while others wait for it in a collective.

    Args:
        world: the ranks.
        waits: whether this rank is about to exit with a code.
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

    On one rank, only `options.scratch` has an effect.

    Args:
        world: the ranks; all of them run the script.
        options: the user's choices.
    """
    account = Account()
    if world.place.size == 1:
        with nullcontext() if options.scratch is None else writing_to(options.scratch, world.place.rank):
            yield account
        return
    world = on_one_host(world)
    with ExitStack() as stack:
        gradients = Gradients(_gradient_world(world, options))
        stack.callback(gradients.detach)
        stack.enter_context(single_process_view(world))
        stack.enter_context(equal_hashes(world))
        common = stack.enter_context(common_folder(world))
        stack.enter_context(shared_network(world, common))
        if options.explain:
            stop = stack.enter_context(explaining(world, undo_replication))
        else:
            stack.enter_context(_writing_once(world, options, common))
            stop = partial(Account.check_split, size=world.place.size, advice=advice)
        stack.enter_context(equal_seeds(world, options.seed))
        stack.enter_context(intercepted_calls())
        stack.enter_context(batch_norm_of_slices())
        stack.enter_context(checkpoints_of_slices())
        stack.enter_context(sequences_of_slices())
        stack.enter_context(averaging_grad(current_gradients))
        slicing = Slicing(world, account, options) if options.split == "loader" else None
        if slicing is not None:
            stack.enter_context(losses_of_slices(slicing))
        agree = stack.enter_context(synchronized_signals(world)).agree
        stack.enter_context(splitting_calls(CallSplitter(world, gradients, account, options, slicing, agree)))
        stack.enter_context(intercepted_loaders())
        stack.enter_context(sharded_loading(ScriptLoaders(world, account, options.load), slicing))
        stack.enter_context(_after_some_steps(account, stop))
        _active.append(stack)
        stack.callback(_active.remove, stack)
        process = os.getpid()
        yield account
        if os.getpid() != process:  # the parent undoes its contexts
            _inherited.append(stack.pop_all())
        elif options.explain:
            stop(account)


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
def _after_some_steps(account: Account, then: Stop) -> Iterator[None]:
    """Count the backward passes of a script, and call `then` after the first `BACKWARDS_UNTIL_CHECK`."""

    def backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not account.backwards and not account.split:
            account.plain_weights = plain_weights(args[0] if args else kwargs["tensors"])
        with out_of_memory_is_final("backward"):
            original(*args, **kwargs)
        account.backwards += 1
        if account.backwards == BACKWARDS_UNTIL_CHECK:
            then(account)

    with attached(declarations.COUNTED_BACKWARD, wrapping(backward)):
        yield


@contextmanager
def _writing_once(world: World, options: Options, common: CommonFolder) -> Iterator[None]:
    """Let only rank 0 write files, and print unless all ranks do; with `scratch`, write only there."""
    rank = world.place.rank
    is_shown = world.place.is_main or options.all_output
    if options.scratch is not None:
        with nullcontext() if is_shown else silenced(), writing_to(options.scratch, rank):
            yield
        return
    journal = Journal(common.path / "journal")
    siblings = SiblingRanks(common.path, rank, common.sharing)
    if world.place.is_main:
        with originals_kept(OriginalKeeper(journal, common.path, siblings)):
            yield
        return
    is_sharing = rank in common.sharing
    if is_sharing:
        siblings.register()
    with owned_folder() as place, nullcontext() if is_shown else silenced():
        overlay = Overlay(
            place,
            journal,
            ReplayedListings(journal) if is_sharing else None,
            siblings.announce if is_sharing else lambda _: None,
            hidden=common.path,
        )
        with overlaid(overlay):
            yield
