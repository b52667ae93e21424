"""Gives the folder of this package, and the user's cache folder; makes paths absolute; checks folders.

The folders that are checked are written to later.
"""

import os
from contextlib import suppress
from pathlib import Path

from samestep.base.errors import UsageError

PACKAGE = str(Path(__file__).parents[1])
"""The folder of the package, without a separator at its end: its frames in a stack begin with it."""


def user_cache() -> Path:
    """Return the user's cache folder, which ``XDG_CACHE_HOME`` can move."""
    import pooch

    return Path(pooch.os_cache("samestep"))


def absolute(path: str) -> Path:
    """Return a path that a command was given, relative to the folder of the command, as an absolute one.

    Programs call this where they read a path, because they may use it in another folder, or pass it to a
    command that runs in one.
    """
    return Path(path).absolute()


def shown(file: str) -> str:
    """Return the path of a file as messages show it: relative to the working folder, if it is below it."""
    with suppress(OSError):  # the folder is gone
        return file.removeprefix(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118 - each status needs it
    return file


def claim_folder(path: Path) -> Path:
    """Make and return a folder that does not exist yet: `path`, or that with ``-2``, ``-3``, ... at its end.

    Commands that begin in the same second choose the same name by the time. A folder that cannot be made is
    returned as it is, because what writes to it reports that.
    """
    count, free = 1, path
    try:
        while not _makes(free):
            count += 1
            free = path.with_name(f"{path.name}-{count}")
    except OSError:
        return path
    return free


def _makes(folder: Path) -> bool:
    """Make a folder, and return whether it did not exist."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
        return True
    return False


def refuse_unwritable_file(flag: str, file: Path | None) -> None:
    """Refuse a file that cannot be written, before time is spent on its content.

    `flag` is the option that has it; nothing is created. The file is None if the option was not given.

    Raises:
        UsageError: it is a folder, or its folder does not exist or is not writable.
    """
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"{flag} {file} is a folder; give a file in it.")
    if not file.parent.is_dir():
        raise UsageError(f"{flag} {file} cannot be written, because there is no folder {file.parent}.")
    refuse_unwritable(flag, file.parent)


def refuse_unwritable(flag: str, folder: Path | None) -> None:
    """Refuse a folder that cannot be created or written to, before time is spent on its content.

    `flag` is the option that has it; nothing is created. The folder is None if the option was not given.

    Raises:
        UsageError: the folder, or the first of its parents that exists, is a file or not writable.
    """
    if folder is None:
        return
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "not writable" if parent.is_dir() else "a file"
        raise UsageError(f"{flag} {folder} cannot be used, because {parent} is {why}; give another folder.")
