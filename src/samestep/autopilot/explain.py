"""Implements ``--explain``: reports the calls to split and files to write, from a script's first steps."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.overlay_calls import overlaid
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.script.call_account import Account
from samestep.autopilot.script.rank_output import silenced
from samestep.base.owned_folders import owned_folder
from samestep.ranks.world.protocol import World

Stop: TypeAlias = Callable[[Account], None]
"""Prints what has been recorded, and ends this process."""


@contextmanager
def explaining(world: World, leave: Callable[[], object]) -> Iterator[Stop]:
    """Suppress what a script prints and writes; yield the function that reports and ends the process.

    Args:
        world: the ranks; all of them call the yielded function in the same step.
        leave: undoes the replication of the script, this context included.
    """
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
            with overlaid(overlay):
                yield partial(stop, overlay)
    finally:
        os.close(stderr)


def _shown(made: list[str]) -> list[str]:
    """Return the paths as the script may have written them, without temporary files."""
    here, temporary = f"{Path.cwd()}/", tempfile.gettempdir()
    files = [path for path in made if path.startswith(here) or not path.startswith(temporary)]
    return [path.removeprefix(here) for path in dict.fromkeys(files)]
