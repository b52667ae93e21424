"""Decides what becomes of a rank's output: which ranks print, and where each of them writes its files."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.folder_listings import ReplayedListings, ShuffledListings
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.kept_originals import OriginalKeeper
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.files.sibling_ranks import SiblingRanks
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.options import Options
from samestep.autopilot.script.shared_folder import CommonFolder
from samestep.base.owned_folders import owned_folder
from samestep.ranks.world.protocol import World

Stop: TypeAlias = Callable[[Account], None]
"""Prints what has been recorded, and ends this process."""


@contextmanager
def writing_once(world: World, options: Options, common: CommonFolder) -> Iterator[None]:
    """Let only rank 0 write files, and print unless all ranks do; with `scratch`, write only there."""
    rank = world.place.rank
    printing = nullcontext() if world.place.is_main or options.all_output else silenced()
    if options.scratch is not None:
        with printing, writing_to(options.scratch / str(rank)):
            yield
        return
    journal = Journal(common.path / "journal")
    siblings = SiblingRanks(common.path, rank, common.sharing)
    if world.place.is_main:
        with redirected(OriginalKeeper(journal, common.path, siblings)):
            yield
        return
    is_sharing = rank in common.sharing
    if is_sharing:
        siblings.register()
    with owned_folder() as place, printing:
        overlay = Overlay(
            place,
            journal,
            ReplayedListings(journal) if is_sharing else None,
            siblings.announce if is_sharing else lambda _: None,
            hidden=common.path,
        )
        with redirected(overlay):
            yield


@contextmanager
def writing_to(folder: Path, order: ShuffledListings | None = None) -> Iterator[Overlay]:
    """Redirect all writes of this process, and of those that it forks, to a folder.

    Several processes may have one folder: each then finds what the others have written.

    Args:
        folder: the folder.
        order: gives listed folders another order on each rank; None for that of the file system.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overlay = Overlay(folder, Journal(folder / "journal"), order=order)
    with redirected(overlay):
        yield overlay


@contextmanager
def explaining(world: World, leave: Callable[[], object]) -> Iterator[Stop]:
    """Suppress what a script prints and writes; yield the function that reports and ends the process."""
    stderr = os.dup(2)

    def stop(overlay: Overlay, account: Account) -> None:
        world.barrier()  # no rank waits for one that has exited
        if world.place.is_main:
            lines = account.lines() + [f"{path}: would be written" for path in _shown(overlay.made)]
            os.write(stderr, "".join(f"samestep: {line}\n" for line in lines).encode())
        leave()
        os._exit(0)

    try:
        with owned_folder() as scratch, silenced():
            overlay = Overlay(scratch, Journal(scratch / "journal"))
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
