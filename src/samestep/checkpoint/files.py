"""Folders on disk that are whole or absent: a reader finds the old one or the new one, never half of one.

What a process had in hand when it was killed has a hidden name. `tidy` removes it for the next writer, and
`restore` gives what was being replaced its name again, also for a reader that comes before the next writer.
Neither touches what this run has not made; see `samestep.checkpoint.own`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samestep.base.own_names import sync
from samestep.base.regular_files import lies_at
from samestep.checkpoint.own import OwnFolders


@contextmanager
def whole_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that takes the place of `folder` when the block ends well; else it is removed.

    The draft stands beside `folder`, on the same file system. Its files have to be on disk at the end of
    the block, as those of `SealedFile` are. A `folder` that is there already stays until then.

    Raises:
        OSError: it cannot be written, or `folder` is there and not this run's.
    """
    make(folder.parent)
    own = OwnFolders.claim(folder.parent)
    restore(folder.parent, name=folder.name)
    _refuse_foreign(own, folder)
    draft = own.begin(folder.name)
    try:
        yield draft
        flush(draft)
        old = _take_the_name(own, draft, folder)
        flush(folder.parent)
    finally:
        if lies_at(draft):
            with suppress(OSError):  # the next writer tries it again
                own.remove(draft.name)
    # The new one is there, whatever comes of this: the next writer clears away what is left.
    if old is not None:
        with suppress(OSError):
            own.remove(old)


def make(folder: Path) -> None:
    """Make `folder` and those above it that are missing, and wait until their names are on disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    for path in reversed(missing):
        with suppress(PermissionError):  # where one may make folders, but not look
            flush(path.parent)


def delete(folder: Path) -> None:
    """Delete a folder of this run so that a kill on the way leaves nothing that looks like one.

    Raises:
        OSError: it is not this run's, or cannot be deleted.
    """
    own = OwnFolders.claim(folder.parent)
    own.remove(own.set_aside(folder.name, "gone"))


def tidy(parent: Path) -> str | None:
    """Clear away in `parent` what a killed writer had in hand; for the one writer there is.

    Returns:
        what has such a name and was left alone because this run has not made it, in one line; or None.

    Raises:
        OSError: `parent` cannot be read or written.
    """
    restore(parent)
    own = OwnFolders.claim(parent)
    for name, _ in own.left_over("draft", "gone", "old"):
        # On a network file system another reader may still hold a file of it: it does no harm.
        with suppress(OSError):
            own.remove(name)
    others = own.left_alone()
    if not others:
        return None
    return f"left as it is in {parent}, because this run has not made it: {', '.join(others)}."


def restore(parent: Path, *, name: str | None = None) -> None:
    """Give a folder that was being replaced its name again, where the new one did not come to have it.

    Args:
        parent: where it is.
        name: looked for alone; None is all.
    """
    own = OwnFolders.find(parent)
    if own is None:
        return
    for hidden, its_name in own.left_over("old"):
        if name in {None, its_name} and not lies_at(parent / its_name):
            # Somebody who may only read finds the ones before; the next writer comes by here as well.
            with suppress(OSError):
                own.rename(hidden, its_name)


def flush(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def _take_the_name(own: OwnFolders, draft: Path, folder: Path) -> str | None:
    """Rename `draft` to `folder`; return the hidden name of what had that name before, if anything had."""
    old = own.set_aside(folder.name, "old") if lies_at(folder) else None
    own.rename(draft.name, folder.name)
    return old


def _refuse_foreign(own: OwnFolders, folder: Path) -> None:
    if lies_at(folder) and (why := own.foreign(folder.name)) is not None:
        raise FileExistsError(errno.EEXIST, f"{why}; it is left as it is, move it away", str(folder))
