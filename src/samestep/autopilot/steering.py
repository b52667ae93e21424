"""Steers a script that knows of one worker only, as one of several copies in step."""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot.account import Account
from samestep.autopilot.agreed_signals import signals_agreed
from samestep.autopilot.alone import as_if_alone, do_what_was_left_for_the_exit
from samestep.autopilot.bypassed import advice, plain_weights
from samestep.autopilot.calls import Calls, current_gradients, outermost_calls, sharing_out
from samestep.autopilot.common import CommonFolder, common_folder
from samestep.autopilot.devices import own_device
from samestep.autopilot.end_check import EndCheck, checked_exits
from samestep.autopilot.explain import Stop, explaining
from samestep.autopilot.folder_listings import ReplayedListings
from samestep.autopilot.gradients import Gradients, averaging_grad
from samestep.autopilot.hash_seed import equal_hashes
from samestep.autopilot.journal import Journal
from samestep.autopilot.kept_calls import originals_kept
from samestep.autopilot.kept_originals import OriginalKeeper
from samestep.autopilot.loaders import loaders_in_shares, reading_in_shares
from samestep.autopilot.loading import Loading
from samestep.autopilot.memory import never_tried_again
from samestep.autopilot.network import asked_once
from samestep.autopilot.norms import batch_norm_of_slices
from samestep.autopilot.options import DEFAULTS, Options
from samestep.autopilot.output import silenced
from samestep.autopilot.overlay_calls import overlaid, writing_to
from samestep.autopilot.overlay_files import Overlay
from samestep.autopilot.packed_sequences import sequences_of_slices
from samestep.autopilot.recomputed import checkpoints_of_slices
from samestep.autopilot.seeds import seeded_alike
from samestep.autopilot.sibling_ranks import SiblingRanks
from samestep.autopilot.slicing import Slicing, losses_of_slices
from samestep.base.owned_folders import owned_folder
from samestep.base.streams import write_stderr
from samestep.collectives.by_algorithm import ByAlgorithm, by_algorithm
from samestep.collectives.one_host import on_one_host
from samestep.watch.watchdog import is_waiting
from samestep.world.join import join
from samestep.world.world import World

ENOUGH = 3
"""Backward passes after which a script of which nothing was split is refused.

Not after the first: a GAN calls its generator in the second, a first batch may be smaller than the number of
ranks, and a model may be trained in another way once it has warmed up. What such a script has printed and
written by then is right, because unsplit calls compute what one rank computes.
"""
_PATIENCE_S = 30.0
"""How long a copy that leaves with a code waits for rank 0, which may wait for it in turn."""
_WRITTEN = "samestep/written"


class Ended(Protocol):
    """How a script ended."""

    @property
    def exit_code(self) -> int:
        """What it would have exited with."""

    @property
    def was_asked_for(self) -> bool:
        """Whether that is what it has given to `sys.exit`, and not 0."""


E = TypeVar("E", bound=Ended)
_under_way: list[ExitStack] = []
"""What each steering of this process has put in place."""
_inherited: list[ExitStack] = []
"""In a process that the script forked: its parent's; kept, because freeing it would close it."""


def steered(run: Callable[[], E], *, guarded: bool = True, options: Options = DEFAULTS) -> E:
    """Join the other workers, and run a script as one of several copies in step.

    Args:
        run: runs it, and says how it ended.
        guarded: whether it is an error that none of its work could be shared out.
        options: the user's choices.

    Raises:
        UsageError: so it was; each worker has done all of it.
        OutOfStep: the ranks differ at the end of the script.
    """
    process = os.getpid()
    with own_device(options) as device, join(device=device, cpu_tensors=True) as world:
        with steering(world, options) as account:
            check = _end_check(world, account, options)
            with nullcontext() if check is None else checked_exits(check):
                ended = run()
                do_what_was_left_for_the_exit()
            if check is not None:
                check.run(ended.exit_code)
        if os.getpid() != process:  # forked by the script: the rest is its parent's
            return ended
        if world.place.size > 1 and guarded and not ended.exit_code:
            account.check_shared(world.place.size, advice)
        if world.place.is_main:
            write_stderr("".join(f"samestep: {line}\n" for line in account.lines()))
        if world.place.size > 1:
            _let_main_write(world, waits=ended.was_asked_for)
    return ended


def _end_check(world: World, account: Account, options: Options) -> EndCheck | None:
    """Return what compares the ranks at the end of the script, if there are several."""
    gradients = current_gradients()
    if gradients is None or options.explain:
        return None
    return EndCheck(world, gradients, account, timeout_s=world.timeout_s)


def _let_main_write(world: World, *, waits: bool) -> None:
    """Let rank 0, which alone writes, do so before a launcher ends all: at the first that leaves with a code.

    That is no collective: a copy may leave for a reason of its own, while others wait for it in one.

    Args:
        world: of this rank.
        waits: whether this one is about to leave with a code.
    """
    store = _get_default_store()
    if not world.place.is_main:
        deadline = time.monotonic() + _PATIENCE_S
        with suppress(RuntimeError):  # rank 0 is gone, and the store with it
            # Where rank 0 waits in a collective, it waits for this rank.
            while waits and time.monotonic() < deadline and not (store.check([_WRITTEN]) or is_waiting(0)):
                time.sleep(0.005)
        return
    with suppress(Exception):  # the script may have closed it, or put another in its place
        sys.stdout.flush()
    with suppress(RuntimeError):
        store.set(_WRITTEN, "")


@contextmanager
def steering(world: World, options: Options = DEFAULTS) -> Iterator[Account]:
    """Within, a script is one of several copies in step; a copy that is alone is left alone.

    Args:
        world: the ranks, one for each copy.
        options: the user's choices.
    """
    account = Account()
    if world.place.size == 1:
        with nullcontext() if options.scratch is None else writing_to(options.scratch, world.place.rank):
            yield account
        return
    world = on_one_host(world)
    with ExitStack() as stack:
        gradients = Gradients(_carrier(world, options))
        stack.callback(gradients.detach)
        stack.enter_context(as_if_alone(world))
        stack.enter_context(equal_hashes(world))
        common = stack.enter_context(common_folder(world))
        stack.enter_context(asked_once(world, common))
        if options.explain:
            stop = stack.enter_context(explaining(world, leave_steering))
        else:
            stack.enter_context(_writing_once(world, options, common))
            stop = partial(Account.check_shared, size=world.place.size, advice=advice)
        stack.enter_context(seeded_alike(world, options.seed))
        stack.enter_context(outermost_calls())
        stack.enter_context(batch_norm_of_slices())
        stack.enter_context(checkpoints_of_slices())
        stack.enter_context(sequences_of_slices())
        stack.enter_context(averaging_grad(current_gradients))
        slicing = Slicing(world, account, options) if options.split == "loader" else None
        if slicing is not None:
            stack.enter_context(losses_of_slices(slicing))
        agree = stack.enter_context(signals_agreed(world)).agree
        stack.enter_context(sharing_out(Calls(world, gradients, account, options, slicing, agree)))
        stack.enter_context(loaders_in_shares())
        stack.enter_context(reading_in_shares(Loading(world, account, options.load), slicing))
        stack.enter_context(_after_some_steps(account, stop))
        _under_way.append(stack)
        stack.callback(_under_way.remove, stack)
        process = os.getpid()
        yield account
        if os.getpid() != process:  # what is to be removed is its parent's
            _inherited.append(stack.pop_all())
        elif options.explain:
            stop(account)


def leave_steering() -> None:
    """Take back what steering has changed, and remove what it has made, in a process that is about to end.

    No copy waits for another here; nothing of the script may run any more.
    """
    while _under_way:
        _under_way[-1].close()


def _carrier(world: World, options: Options) -> World:
    """Return the world whose all-reduces carry the gradients; rank 0 says which, if the user has."""
    if options.algorithm is None:
        return world
    carrier = by_algorithm(world, options.algorithm)
    if isinstance(carrier, ByAlgorithm) and world.place.is_main:
        sys.stderr.write(f"samestep: gradients: all-reduce by {carrier.crossovers.describe()}\n")
    return carrier


@contextmanager
def _after_some_steps(account: Account, then: Stop) -> Iterator[None]:
    """Do something once a script has had its first steps, told by their backwards."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if not account.backwards and not account.split:
            account.plain_weights = plain_weights(args[0] if args else kwargs["tensors"])
        with never_tried_again("backward"):
            original(*args, **kwargs)
        account.backwards += 1
        if account.backwards == ENOUGH:
            then(account)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


@contextmanager
def _writing_once(world: World, options: Options, common: CommonFolder) -> Iterator[None]:
    """Let rank 0 alone write files for real, and print unless all are to; with `scratch`, no rank writes."""
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
