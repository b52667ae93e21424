"""Makes, replaces and removes checkpoint folders of one run atomically; refuses to change other folders.

A reader finds the old or the new folder, never a part. A folder belongs to a run if it is a folder, not a
link, and contains nothing but the files of a checkpoint and the mark, which names the run. The mark is
written first and removed last::

    checkpoints/
      .samestep-run                               the run's identity
      step-120/.samestep                          the mark
      .samestep-draft-IDENTITY-RANDOM.step-160/   being written; removed after a kill
      .samestep-old-IDENTITY-RANDOM.step-120/     being replaced; renamed back after a kill
      .samestep-gone-IDENTITY-RANDOM.step-80/     being deleted; removed after a kill

All operations are relative to open folders, so that a link which replaces a folder meanwhile is not followed.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from samestep.base.record import claim, hidden_name, identity_of, parse_hidden, sync
from samestep.base.regular_files import descriptor, kind_of, lies_at, read_bytes
from samestep.training.checkpoint.snapshot import FILES, MARK

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_LOOKS_OURS = re.compile(r"\..+\.(draft|old|gone)-\d+|\.samestep-(draft|old|gone)-.*", re.DOTALL)
"""Hidden names of this and of earlier versions."""
_SHOWN = 4  # maximum names in a message


@dataclass(frozen=True, slots=True)
class OwnedFolders:
    """The folders in `parent` that one run has made.

    Methods that change a folder raise OSError if it is not this run's, or cannot be changed.
    """

    parent: Path
    identity: str  # identity of the run, as stored in `parent`

    @classmethod
    def claim(cls, parent: Path) -> "OwnedFolders":
        """Return the folders of the run that writes to `parent`; store a new identity if there is none."""
        return cls(parent, claim(parent))

    @classmethod
    def find(cls, parent: Path) -> "OwnedFolders | None":
        """Return the folders of the run that has written to `parent`; None if there is none."""
        identity = identity_of(parent)
        return None if identity is None else cls(parent, identity)

    @property
    def mark(self) -> bytes:
        """Contents of the mark in each of the run's folders."""
        return f'{{"made_by": "samestep", "run": "{self.identity}"}}\n'.encode()

    def begin(self, name: str) -> Path:
        """Make a draft of the folder `name`, with its mark; return its path."""
        draft = self.parent / hidden_name("draft", name, self.identity)
        draft.mkdir()
        try:
            self._write_mark(draft)
        except OSError:
            with suppress(OSError):
                self.remove(draft.name)
            raise
        return draft

    def not_owned(self, name: str) -> str | None:
        """Return why the folder `name` is not this run's; None if it is."""
        try:
            with self._opened(name) as folder:
                return self._not_owned_inside(folder, name)
        except OSError as error:
            return _why_not_opened(error, self.parent / name)

    def rename(self, name: str, new: str) -> None:
        """Rename a folder of this run."""
        self._refuse_not_owned(name)
        with descriptor(self.parent, _FOLDER) as parent:
            os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)

    def set_aside(self, name: str, kind: str) -> str:
        """Rename a folder of this run to a hidden name, and return that."""
        hidden = hidden_name(kind, name, self.identity)
        self.rename(name, hidden)
        return hidden

    def remove(self, name: str) -> None:
        """Remove a folder of this run and its files, the mark last."""
        with descriptor(self.parent, _FOLDER) as parent:
            with self._opened(name) as folder:
                if (why := self._not_owned_inside(folder, name)) is not None:
                    raise OSError(errno.EPERM, why, str(self.parent / name))
                for file in [*sorted(FILES), MARK]:
                    with suppress(FileNotFoundError):
                        os.unlink(file, dir_fd=folder)
            os.rmdir(name, dir_fd=parent)

    def hidden_folders(self, *kinds: str) -> list[tuple[str, str]]:
        """Return the hidden names of some kinds, each with the folder's visible name."""
        parsed_names = ((name, parse_hidden(name, self.identity)) for name in _names(self.parent))
        return [(name, parsed[1]) for name, parsed in parsed_names if parsed and parsed[0] in kinds]

    def not_owned_hidden(self) -> list[str]:
        """Return the folders with hidden names that are not this run's, each with the reason."""
        names = (name for name in _names(self.parent) if _LOOKS_OURS.fullmatch(name))
        return [f"{name} ({why})" for name in names if (why := self._why_left(name)) is not None]

    def files_in(self, name: str) -> set[str]:
        """Return the names of the files in a folder; empty if it cannot be read."""
        try:
            with self._opened(name) as folder:
                return {entry.name for entry in os.scandir(folder)}
        except OSError:
            return set()

    def _why_left(self, name: str) -> str | None:
        why = self.not_owned(name)
        if why is None and parse_hidden(name, self.identity) is None:
            return "its name is not this run's"
        return why

    def _refuse_not_owned(self, name: str) -> None:
        if (why := self.not_owned(name)) is not None:
            raise OSError(errno.EPERM, why, str(self.parent / name))

    def _write_mark(self, folder: Path) -> None:
        with descriptor(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644) as handle:
            os.write(handle, self.mark)
            sync(handle)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with (
            descriptor(self.parent, _FOLDER) as parent,
            descriptor(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent) as handle,
        ):
            yield handle

    def _not_owned_inside(self, folder: int, name: str) -> str | None:
        """Return why an open folder is not this run's; None if it is.

        After a kill a folder whose hidden name has this run's identity can have an incomplete mark or none;
        then it has no other file.
        """
        hidden = parse_hidden(name, self.identity) is not None
        entries = {entry.name: entry for entry in os.scandir(folder)}
        foreign = sorted(
            file
            for file, entry in entries.items()
            if file not in FILES | {MARK} or not entry.is_file(follow_symlinks=False)
        )
        if foreign:
            more = ", ..." if len(foreign) > _SHOWN else ""
            return f"it contains {', '.join(map(repr, foreign[:_SHOWN]))}{more}, not part of a checkpoint"
        mark = read_bytes(MARK, most=256, dir_fd=folder, follow=False) if MARK in entries else b""
        if mark == self.mark or (hidden and entries.keys() <= {MARK} and self.mark.startswith(mark)):
            return None
        return "it is another run's" if mark else f"it has no {MARK} file of this run"


def _why_not_opened(error: OSError, path: Path) -> str:
    """Return why a folder could not be opened and read."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            return f"it is {kind_of(mode) or 'a file'}"
    return f"it cannot be read: {error.strerror}"


def _names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []


@contextmanager
def whole_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that replaces `folder` after the block; an error in the block removes it.

    The draft is next to `folder`, on the same file system. Its files must be on disk at the end of the
    block, as those of `SealedFile` are. An existing `folder` stays until then.

    Raises:
        OSError: it cannot be written, or `folder` exists and is not this run's.
    """
    make(folder.parent)
    run_folders = OwnedFolders.claim(folder.parent)
    restore(folder.parent, name=folder.name)
    _refuse_not_owned(run_folders, folder)
    draft = run_folders.begin(folder.name)
    try:
        yield draft
        flush(draft)
        old = _replace(run_folders, draft, folder)
        flush(folder.parent)
    finally:
        if lies_at(draft):
            with suppress(OSError):  # the next writer tries again
                run_folders.remove(draft.name)
    # The new folder is complete even if this fails; the next writer tries again.
    if old is not None:
        with suppress(OSError):
            run_folders.remove(old)


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
    """Delete a folder of this run; it is renamed first, so that a kill leaves no damaged checkpoint."""
    run_folders = OwnedFolders.claim(folder.parent)
    run_folders.remove(run_folders.set_aside(folder.name, "gone"))


def tidy(parent: Path) -> str | None:
    """Remove the hidden folders of a killed writer in `parent`; called by the only writer.

    Returns:
        one line that names hidden folders which are not this run's and were kept; None without any.

    Raises:
        OSError: `parent` cannot be read or written.
    """
    restore(parent)
    run_folders = OwnedFolders.claim(parent)
    for name, _ in run_folders.hidden_folders("draft", "gone", "old"):
        # On a network file system another reader can still have a file of it open.
        with suppress(OSError):
            run_folders.remove(name)
    kept = run_folders.not_owned_hidden()
    if not kept:
        return None
    return f"not removed from {parent}, because this run has not made it: {', '.join(kept)}."


def restore(parent: Path, *, name: str | None = None) -> None:
    """Rename a folder, or only the one called `name`, back to its name if its replacement was interrupted."""
    run_folders = OwnedFolders.find(parent)
    if run_folders is None:
        return
    for hidden, visible in run_folders.hidden_folders("old"):
        if name in {None, visible} and not lies_at(parent / visible):
            # A reader without write access uses earlier checkpoints; the next writer restores this one.
            with suppress(OSError):
                run_folders.rename(hidden, visible)


def flush(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    with descriptor(folder, _FOLDER) as handle:
        sync(handle)


_REPLACE_TRIES = 100
"""The most times that readers may undo the replacement of a checkpoint before it fails: a guess."""


def _replace(run_folders: OwnedFolders, draft: Path, folder: Path) -> str | None:
    """Rename `draft` to `folder`; return the hidden name of the replaced folder, or None.

    A reader that looks between the two renames restores the replaced folder, which is then set aside again.
    """
    for tries_left in reversed(range(_REPLACE_TRIES)):
        old = run_folders.set_aside(folder.name, "old") if lies_at(folder) else None
        try:
            run_folders.rename(draft.name, folder.name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                raise
        else:
            return old
    raise AssertionError("the last try returns or raises")


def _refuse_not_owned(run_folders: OwnedFolders, folder: Path) -> None:
    if lies_at(folder) and (why := run_folders.not_owned(folder.name)) is not None:
        raise FileExistsError(errno.EEXIST, f"{why}; move it away", str(folder))
