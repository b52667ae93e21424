"""Redirects what a script prints and writes."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.folder_listings import ShuffledListings
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.script.call_account import Account
from samestep.base.owned_folders import owned_folder

Stop: TypeAlias = Callable[[Account], None]
"""Prints what has been recorded, and ends this process."""


@contextmanager
def writing_to(folder: Path, order: ShuffledListings | None = None) -> Iterator[Overlay]:
    """Redirect all writes of this process, and of those that it forks, to a folder.

    Several processes may have one folder: each then finds what the others have written.

    Args:
        folder: the folder.
        order: gives listed folders another order on each rank; None for that of the file system.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overlay = Overlay(folder, order)
    with redirected(overlay):
        yield overlay


@contextmanager
def explaining() -> Iterator[Stop]:
    """Suppress what a script prints and writes; yield the function that reports and ends the process."""
    stderr = os.dup(2)

    def stop(overlay: Overlay, account: Account) -> None:
        lines = account.lines() + [f"{path}: would be written" for path in _shown(overlay.made)]
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
