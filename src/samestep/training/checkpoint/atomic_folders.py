"""Writes, replaces and deletes folders atomically: a reader finds the old or the new one, never a part.

A folder that is being written, replaced or deleted has a hidden name. After a kill, `tidy` removes these for
the next writer, and `restore` renames a folder whose replacement was interrupted, also for a reader.
Neither changes folders of another run; see `samestep.training.checkpoint.owned_checkpoints`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samestep.base.regular_files import lies_at
from samestep.base.unfinished_names import sync
from samestep.training.checkpoint.owned_checkpoints import OwnedFolders


@contextmanager
def whole_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that replaces `folder` after the block; an error in the block removes it.

    The draft is next to `folder`, on the same file system. Its files must be on disk at the end of the
    block, as those of `SealedFile` are. An existing `folder` stays until then.

    Raises:
        OSError: it cannot be written, or `folder` exists and is not this run's.
    """
    make(folder.parent)
    own = OwnedFolders.claim(folder.parent)
    restore(folder.parent, name=folder.name)
    _refuse_not_owned(own, folder)
    draft = own.begin(folder.name)
    try:
        yield draft
        flush(draft)
        old = _replace(own, draft, folder)
        flush(folder.parent)
    finally:
        if lies_at(draft):
            with suppress(OSError):  # the next writer tries again
                own.remove(draft.name)
    # The new folder is complete even if this fails; the next writer tries again.
    if old is not None:
        with suppress(OSError):
            own.remove(old)


def make(folder: Path) -> None:
    """Make `folder` and its missing parents, and wait until their names are on disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    for path in reversed(missing):
        with suppress(PermissionError):  # a parent can be writable and not readable
            flush(path.parent)


def delete(folder: Path) -> None:
    """Delete a folder of this run; it is renamed first, so that a kill leaves no damaged checkpoint.

    Raises:
        OSError: it is not this run's, or cannot be deleted.
    """
    own = OwnedFolders.claim(folder.parent)
    own.remove(own.set_aside(folder.name, "gone"))


def tidy(parent: Path) -> str | None:
    """Remove the hidden folders of a killed writer in `parent`; called by the only writer.

    Returns:
        one line that names hidden folders which are not this run's and were kept; None without any.

    Raises:
        OSError: `parent` cannot be read or written.
    """
    restore(parent)
    own = OwnedFolders.claim(parent)
    for name, _ in own.hidden_folders("draft", "gone", "old"):
        # On a network file system another reader can still have a file of it open.
        with suppress(OSError):
            own.remove(name)
    others = own.not_owned_hidden()
    if not others:
        return None
    return f"not removed from {parent}, because this run has not made it: {', '.join(others)}."


def restore(parent: Path, *, name: str | None = None) -> None:
    """Rename a folder whose replacement was interrupted back to its name, if that is free.

    Args:
        parent: the folder that contains it.
        name: of the only folder to restore; None is all.
    """
    own = OwnedFolders.find(parent)
    if own is None:
        return
    for hidden, its_name in own.hidden_folders("old"):
        if name in {None, its_name} and not lies_at(parent / its_name):
            # A reader without write access uses earlier checkpoints; the next writer restores this one.
            with suppress(OSError):
                own.rename(hidden, its_name)


def flush(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def _replace(own: OwnedFolders, draft: Path, folder: Path) -> str | None:
    """Rename `draft` to `folder`; return the hidden name of the replaced folder, or None."""
    old = own.set_aside(folder.name, "old") if lies_at(folder) else None
    own.rename(draft.name, folder.name)
    return old


def _refuse_not_owned(own: OwnedFolders, folder: Path) -> None:
    if lies_at(folder) and (why := own.not_owned(folder.name)) is not None:
        raise FileExistsError(errno.EEXIST, f"{why}; move it away", str(folder))
