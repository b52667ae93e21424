"""Keeps the originals of the files that rank 0 changes, so that the other ranks can still read them."""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from samestep.autopilot.files.folder_listings import ChangedFolders, RecordedListings
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.paths import CommonPaths, folder_of_descriptor, is_actual_folder, path_text
from samestep.autopilot.files.sibling_ranks import SiblingRanks

LARGE = 16 << 20
"""Bytes from which a file is not copied if all other ranks change it too."""


class OriginalKeeper:
    """Keeps originals on rank 0; its methods are called before each change of a file or folder.

    Only the first change of a file that existed before the run matters. The original is copied into the
    common folder and a line is appended to the journal; then rank 0 changes the file in its place.

    Args:
        journal: the journal of the run.
        folder: the common folder.
        siblings: the other ranks; None if no other rank reads the files.
    """

    def __init__(self, journal: Journal, folder: Path, siblings: SiblingRanks | None = None) -> None:
        self._journal, self._folder, self._siblings = journal, str(folder), siblings
        self._common = CommonPaths(self._folder)
        self._changed = ChangedFolders()
        self._listings = RecordedListings(journal)
        self._numbers = count()

    def live_path(self, path: Any, dir_fd: int | None = None, *, follow: bool = False) -> str | None:
        """Return a path without symbolic links in its folder part; None for a file that needs no original."""
        text = path_text(path)
        if not text:
            return None
        if dir_fd is not None:
            text = os.path.join(folder_of_descriptor(dir_fd), text)
        text = os.path.abspath(text) if ".." not in text else os.path.join(os.getcwd(), text)
        if follow:
            text = os.path.realpath(text)
        elif text != "/":
            folder, name = os.path.split(text.rstrip("/"))
            text = os.path.join(os.path.realpath(folder), name)
        return None if text in self._common else text

    def open(self, path: Any, *, creates: bool, follow: bool = True, dir_fd: int | None = None) -> None:
        """Keep the original of a file before it is opened for writing."""
        live = self.live_path(path, dir_fd, follow=follow)
        if live is None:
            return
        if os.path.lexists(live):
            self._change(live)
        elif creates:
            self._make(live)

    def make(self, path: Any, dir_fd: int | None = None, *, is_folder: bool = False) -> None:
        """Record a file or folder before it is created."""
        live = self.live_path(path, dir_fd)
        if live is not None and not os.path.lexists(live):
            self._make(live)
            if is_folder:
                self._changed.add(live)

    def change(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> None:
        """Keep the original of a file before its contents or attributes are changed."""
        live = self.live_path(path, dir_fd, follow=follow)
        if live is not None and os.path.lexists(live):
            self._change(live)

    def remove(self, path: Any, dir_fd: int | None = None, *, is_folder: bool = False) -> None:
        """Keep a file or an empty folder before it is removed."""
        live = self.live_path(path, dir_fd)
        if live is None or not os.path.lexists(live):
            return
        if is_folder == is_actual_folder(live) and not (is_folder and os.listdir(live)):
            self._enter_change(live)
            self._keep(live, in_place=False)

    def remove_tree(self, path: Any, dir_fd: int | None = None) -> None:
        """Keep a folder and its contents before it is removed."""
        live = self.live_path(path, dir_fd)
        if live is not None and is_actual_folder(live):
            self._enter_change(live)
            self._keep_tree(live)

    def link(self, source: Any, target: Any, **folders: int | None) -> None:
        """Keep the original of a file before a hard link to it is created."""
        live = self.live_path(source, folders.get("src_dir_fd"))
        if live is None or os.path.isfile(live) or os.path.islink(live):
            if live is not None:
                self._change(live)
            self.make(target, folders.get("dst_dir_fd"))

    @contextmanager
    def renaming(self, source: Any, target: Any, **folders: int | None) -> Iterator[None]:
        """Record a rename, which the caller executes within this context."""
        old = self.live_path(source, folders.get("src_dir_fd"))
        new = self.live_path(target, folders.get("dst_dir_fd"))
        if old is None or new is None or not _can_rename(old, new):
            if old is not None and new is None:
                self.remove(source, folders.get("src_dir_fd"))
            elif new is not None and old is None:
                self.open(target, creates=True, follow=False)
            yield
            return
        self._enter_change(old)
        if os.path.lexists(new):
            self._enter_change(new)
            self._keep(new, in_place=False)
        else:
            self._make(new)
        self._journal.append("renaming")
        try:
            yield
        except BaseException:
            self._journal.append("renamed", source=None, target=None)
            raise
        self._journal.append("renamed", source=old, target=new)
        self._changed.rename(old, new)

    def listed(self, path: Any, names: Sequence[str]) -> list[str]:
        """Return the names without the common folder; record them if the run has changed their folder."""
        live = self.live_path(path, follow=True)
        if live is None:
            return [*names]
        seen = [name for name in names if os.path.join(live, name) != self._folder]
        if live in self._changed:
            self._listings.record(live, seen)
        return seen

    def _make(self, live: str) -> None:
        self._enter_change(live)
        base = self._journal.base_of(live)
        if base is not None:
            self._journal.append("made", live=live, base=base)

    def _change(self, live: str) -> None:
        self._journal.refresh()
        if stat.S_ISREG(os.lstat(live).st_mode) or os.path.islink(live):
            self._keep(live, in_place=True)

    def _enter_change(self, live: str) -> None:
        """Record the names in the folder of `live`, before the first of them is created or removed."""
        self._journal.refresh()
        folder = os.path.dirname(live)
        self._changed.add(folder)
        self._list_base(folder)

    def _list_base(self, folder: str) -> None:
        base = self._journal.base_of(folder)
        if base is not None and base not in self._journal.entries and os.path.isdir(folder):
            names = [name for name in os.listdir(folder) if os.path.join(folder, name) != self._folder]
            self._journal.append("entries", base=base, names=names)

    def _keep_tree(self, live: str) -> None:
        self._list_base(live)
        for name in os.listdir(live):
            one = os.path.join(live, name)
            if is_actual_folder(one):
                self._keep_tree(one)
            else:
                self._keep(one, in_place=False)
        self._keep(live, in_place=False)

    def _keep(self, live: str, *, in_place: bool) -> None:
        base = self._journal.base_of(live)
        if base is None:
            return
        status = os.lstat(live)
        if stat.S_ISDIR(status.st_mode):
            self._list_base(live)
        is_large = stat.S_ISREG(status.st_mode) and status.st_size > LARGE
        if is_large and self._siblings is not None and self._siblings.all_change(base):
            place = None
        else:
            place = self._copy(live, status, may_link=not in_place and status.st_nlink == 1)
        self._journal.append("kept", live=live, base=base, at=place)
        if in_place and self._siblings is not None:
            self._siblings.await_closed(status)

    def _copy(self, live: str, status: os.stat_result, *, may_link: bool) -> str | None:
        folder = os.path.join(self._folder, "kept", f"{os.getpid()}.{next(self._numbers)}")
        os.makedirs(folder)
        place = os.path.join(folder, os.path.basename(live))
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(live), place)
        elif stat.S_ISDIR(status.st_mode):
            os.mkdir(place)
            shutil.copystat(live, place)
        elif stat.S_ISREG(status.st_mode):
            try:
                if not may_link:
                    raise OSError
                os.link(live, place)
            except OSError:  # on another file system
                try:
                    shutil.copy2(live, place)
                except PermissionError:  # then no rank can read it
                    return None
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(place)
        else:
            return None
        return place


def _can_rename(source: str, target: str) -> bool:
    """Return whether a rename changes anything."""
    if not os.path.lexists(source) or not os.path.isdir(os.path.dirname(target)):
        return False
    if f"{target}/".startswith(f"{source}/") or source.startswith(f"{target}/"):
        return False
    if not os.path.lexists(target):
        return True
    if is_actual_folder(source) != is_actual_folder(target):
        return False
    if is_actual_folder(target):
        return not os.listdir(target)
    return not os.path.samestat(os.lstat(source), os.lstat(target))
