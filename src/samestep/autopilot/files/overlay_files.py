"""Gives a rank other than 0 a private overlay over the files from before the run.

Every rank executes the same operations, so the files from before the run plus the rank's changes are the
files that a serial script finds. Rank 0 changes the actual files, and keeps the originals (`kept_originals`).
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from samestep.autopilot.files.folder_listings import ReplayedListings
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.overlay_layer import OverlayLayer
from samestep.autopilot.files.overlay_lookup import GONE, MARK, Folder, OverlayLookup, Spot, join

T = TypeVar("T")


class Overlay:
    """The files of one rank.

    Args:
        root: a private folder.
        journal: the journal of rank 0.
        listings: orders the listings of folders that the run has changed; None without a rank 0.
        announce: called with each base path whose original this rank does not read any more.
        hidden: a folder that is hidden from the script.
    """

    def __init__(
        self,
        root: Path,
        journal: Journal,
        listings: ReplayedListings | None = None,
        announce: Callable[[str], object] = lambda _: None,
        hidden: Path | None = None,
    ) -> None:
        self._root = str(root)
        self.lookup = OverlayLookup(self._root, journal, str(hidden) if hidden else None)
        self._listings = listings
        self._layer = OverlayLayer(self.lookup, announce, self.read)

    @property
    def made(self) -> list[str]:
        """The paths that this rank has created or written, in this order."""
        return self._layer.made

    def find(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> Any:
        """Return the actual path to read; if there is no file, a path that does not exist."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            return self.lookup.plain(path, dir_fd)
        try:
            where = self.lookup.spot(text, follow=follow).where
        except FileNotFoundError:
            where = None
        return self._nowhere(text) if where is None else where

    def read(
        self,
        path: Any,
        how: Callable[[Any], T],
        *,
        follow: bool = True,
        dir_fd: int | None = None,
        close: Callable[[T], object] | None = None,
    ) -> T:
        """Return the result of `how` for the actual path; call it again if rank 0 changes the file meanwhile.

        Args:
            path: the path that the script uses.
            how: called with the actual path of the file for this rank.
            follow: whether symbolic links are followed.
            dir_fd: the folder that the path is relative to.
            close: undoes `how`.
        """
        where = self.find(path, follow=follow, dir_fd=dir_fd)
        while True:
            size = self.lookup.journal.size
            try:
                found = how(where)
            except Exception:  # a library may raise any error for a missing file
                again = self._if_elsewhere(path, where, size, follow=follow, dir_fd=dir_fd)
                if again is None:
                    raise
            else:
                again = self._if_elsewhere(path, where, size, follow=follow, dir_fd=dir_fd)
                if again is None:
                    return found
                if close is not None:
                    close(found)
            where = again

    def exists(self, path: Any, *, follow: bool = False) -> bool:
        """Return whether `path` exists for this rank."""
        text = self.lookup.text(path)
        if text is None:
            return os.path.lexists(path)
        try:
            return self.lookup.spot(text, follow=follow).where is not None
        except OSError:
            return False

    @contextmanager
    def writing(
        self,
        path: Any,
        *,
        creates: bool = True,
        exclusive: bool = False,
        truncates: bool = False,
        follow: bool = True,
        dir_fd: int | None = None,
    ) -> Iterator[Any]:
        """Yield the actual path to write: a new file, or a copy of the existing one."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            yield self.lookup.plain(path, dir_fd)
            return
        try:
            spot = self.lookup.spot(text, follow=follow and not exclusive)
        except FileNotFoundError:
            yield self._nowhere(text)
            return
        if spot.where is None:
            if not creates:
                yield self._nowhere(text)
                return
            with self._layer.making(spot) as own:
                yield own
            return
        if exclusive:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        yield self._layer.own_copy(spot, truncates=truncates)

    @contextmanager
    def making(self, path: Any, dir_fd: int | None = None) -> Iterator[Any]:
        """Yield the actual path at which to create a new file; for folders there is `make_folder`."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            yield self.lookup.plain(path, dir_fd)
            return
        spot = self.lookup.spot(text, follow=False)
        if spot.where is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        with self._layer.making(spot) as own:
            yield own

    def make_folder(self, path: Any, mode: int = 0o777, dir_fd: int | None = None) -> None:
        """Create a folder."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            os.mkdir(self.lookup.plain(path, dir_fd), mode)
            return
        spot = self.lookup.spot(text, follow=False)
        if spot.where is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        with self._layer.making(spot) as own:
            os.mkdir(own, mode)
            if self.lookup.existed(spot.path):
                os.symlink(GONE, join(own, MARK))
        self._layer.changed.add(spot.path)
        self.lookup.changed()

    def remove(self, path: Any, dir_fd: int | None = None, *, is_folder: bool = False) -> None:
        """Remove a file, or an empty folder."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            (os.rmdir if is_folder else os.unlink)(self.lookup.plain(path, dir_fd))
            return
        spot = self.lookup.spot(text, follow=False)
        _check_removable(spot, path, is_folder=is_folder)
        if is_folder and self._layer.names(self._layer.folder_at(spot)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._layer.drop(spot)

    def remove_tree(self, path: Any, dir_fd: int | None = None) -> bool:
        """Remove a folder with its contents; return False if it is not a folder, or shared."""
        text = self.lookup.text(path, dir_fd)
        if text is None:
            return False
        try:
            spot = self.lookup.spot(text, follow=False)
        except OSError:
            return False
        if not spot.is_folder:
            return False
        self._layer.drop(spot)
        return True

    def rename(
        self, source: Any, target: Any, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """Rename a file or folder."""
        one, other = self.lookup.text(source, src_dir_fd), self.lookup.text(target, dst_dir_fd)
        if one is None or other is None:
            plain = self.lookup.plain
            self._rename_between(plain(source, src_dir_fd), plain(target, dst_dir_fd), one, other)
            return
        old, new = self.lookup.spot(one, follow=False), self.lookup.spot(other, follow=False)
        _check_rename(old, new, source, target)
        if old.path == new.path:
            return
        if new.is_folder and self._layer.names(self._layer.folder_at(new)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
        if _is_same_file(old, new):
            return
        if new.where is not None:
            self._layer.drop(new)
        self._layer.move(old, new)
        self._layer.changed.rename(old.path, new.path)
        self.lookup.changed()

    def link(self, source: Any, target: Any, **folders: int | None) -> None:
        """Create a hard link to a file."""
        text = self.lookup.text(source, folders.get("src_dir_fd"))
        where = source
        if text is not None:
            spot = self.lookup.spot(text, follow=False)
            if spot.where is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            where = spot.where if spot.is_folder else self._layer.own_copy(spot)
        with self.making(target, folders.get("dst_dir_fd")) as own:
            os.link(where, own)

    def enter(self, path: Any) -> None:
        """Change the working folder of this rank, and of the process if the folder exists on disk."""
        text = self.lookup.text(path)
        if text is None:
            os.chdir(path)
            self.lookup.current = os.getcwd()
            return
        folder = self.lookup.folder(text)
        self.lookup.current = folder.path
        for place in (folder.path, folder.place, folder.own):
            if place is not None and os.path.isdir(place):
                os.chdir(place)
                return

    def names(self, path: Any) -> list[str]:
        """Return the names in a folder, in the order of rank 0."""
        text = self.lookup.text(path)
        if text is None:
            return os.listdir(path)
        folder, names = self.lookup.unchanged(text, lambda: self._names_in(self.lookup.folder(text)))
        if self._listings is None or folder.path not in self._layer.changed:
            return names
        return self._listings.ordered(folder.path, names)

    def _names_in(self, folder: Folder) -> tuple[Folder, list[str]]:
        return folder, self._layer.names(folder)

    def unchanged_entries(self, path: Any) -> "dict[str, os.DirEntry[str]]":
        """Return the entries of a folder in the file system by name; empty if a rank has changed it."""
        text = self.lookup.text(path)
        folder = self.lookup.folder(text) if text is not None else None
        if folder is None or folder.own is not None or folder.place is None:
            return {}
        journal = self.lookup.journal
        try:
            with os.scandir(folder.place) as entries:
                found = {entry.name: entry for entry in entries}
        except OSError:  # rank 0 may have removed the folder meanwhile; `names` finds out
            return {}
        journal.refresh()
        return {} if folder.base in journal.entries else found

    def status(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of a path."""
        return self.read(path, os.lstat, follow=follow_symlinks)

    def _if_elsewhere(
        self, path: Any, where: Any, size: int, *, follow: bool, dir_fd: int | None
    ) -> Any | None:
        """Return the new actual path if it is not `where` any more; `size` is the journal's at that time."""
        if self.lookup.journal.refresh() == size:
            return None
        again = self.find(path, follow=follow, dir_fd=dir_fd)
        return None if again == where else again

    def _nowhere(self, text: str) -> str:
        return join(self._root, f"dev/null/{os.path.basename(text)}")

    def _rename_between(self, source: Any, target: Any, one: str | None, other: str | None) -> None:
        """Rename something to or from a path that is not in the overlay."""
        if one is not None:
            os.rename(self.find(source, follow=False), target)
            self._layer.drop(self.lookup.spot(one, follow=False))
        elif other is None:
            os.rename(source, target)
        else:
            if os.path.isdir(source) and self.exists(target):
                self.remove(target, is_folder=True)
            with self.writing(target, truncates=True, follow=False) as own:
                shutil.move(source, own)


def _is_same_file(old: Spot, new: Spot) -> bool:
    if old.where is None or new.where is None:
        return False
    return os.path.samestat(os.lstat(old.where), os.lstat(new.where))


def _check_removable(spot: Spot, path: Any, *, is_folder: bool) -> None:
    """Raise the error that Linux raises if a file or folder cannot be removed."""
    if spot.where is None:
        code = errno.ENOENT
    elif is_folder and not spot.is_folder:
        code = errno.ENOTDIR
    elif spot.is_folder and not is_folder:
        code = errno.EISDIR
    else:
        return
    raise OSError(code, os.strerror(code), path)


def _check_rename(old: Spot, new: Spot, source: Any, target: Any) -> None:
    """Raise the error that Linux raises if a file or folder cannot be renamed."""
    code = 0
    if old.where is None:
        code = errno.ENOENT
    elif old.is_folder and new.path.startswith(f"{old.path}/"):
        code = errno.EINVAL
    elif old.path.startswith(f"{new.path}/"):
        code = errno.ENOTEMPTY
    elif new.where is not None and old.is_folder and not new.is_folder:
        code = errno.ENOTDIR
    elif new.is_folder and not old.is_folder:
        code = errno.EISDIR
    if code:
        raise OSError(code, os.strerror(code), source, None, target)
