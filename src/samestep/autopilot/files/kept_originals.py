"""Keeps the originals of the files that rank 0 changes, so that the other ranks can still read them."""

import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from samestep.autopilot.files.file_calls import Call, FileAccess
from samestep.autopilot.files.file_lock import locked
from samestep.autopilot.files.folder_listings import ChangedFolders, Scan
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.paths import (
    DATABASE_SUFFIXES,
    CommonPaths,
    database_path,
    folder_of_descriptor,
    is_actual_folder,
    path_text,
)
from samestep.autopilot.files.sibling_ranks import SiblingRanks

LARGE = 16 << 20
"""Bytes from which a file is not copied if all other ranks change it too."""


class OriginalKeeper:
    """The handler of rank 0 for `file_calls`: it keeps the original, then calls the function itself.

    Only the first change of a file that existed before the run matters. The original is copied into the
    common folder and a line is appended to the journal; then rank 0 changes the file in its place.
    """

    def __init__(self, journal: Journal, folder: Path, siblings: SiblingRanks | None = None) -> None:
        self._journal, self._folder, self._siblings = journal, str(folder), siblings
        self._common = CommonPaths(self._folder)
        self._changed = ChangedFolders()
        self._process = os.getpid()
        self._numbers = count()
        self._lock = os.path.join(self._folder, "lock")

    def accessed(self, original: Call, access: FileAccess, args: Sequence[Any], kwargs: Any) -> Any:
        """Act for functions that access one file."""
        path, dir_fd = args[access.at], access.dir_fd
        if access.kind == "make" or (access.kind == "write" and access.exclusive):
            self._before_making(path, dir_fd)
        elif access.kind == "write":
            self._before_writing(path, creates=access.creates, follow=access.follow, dir_fd=dir_fd)
        return original(*args, **kwargs)

    def folder_made(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `os.mkdir`."""
        live = self._before_making(path, kwargs.get("dir_fd"))
        if live is not None:
            self._changed.add(live)
        original(path, *args, **kwargs)

    def removed(self, original: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.remove` and `os.rmdir`."""
        self._before_removing(path, dir_fd, is_folder=original.__name__ == "rmdir")
        original(path, dir_fd=dir_fd)

    def tree_removed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `shutil.rmtree`."""
        live = self._live_path(path, kwargs.get("dir_fd"))
        if live is not None and is_actual_folder(live):
            self._enter_change(live)
            self._keep_tree(live)
        original(path, *args, **kwargs)

    def renamed(self, original: Call, source: Any, target: Any, **folders: int | None) -> None:
        """Act for `os.rename` and `os.replace`."""
        with self._renaming(source, target, **folders):
            original(source, target, **folders)

    def linked(self, original: Call, source: Any, target: Any, **kwargs: Any) -> None:
        """Act for `os.link`."""
        live = self._live_path(source, kwargs.get("src_dir_fd"))
        if live is None or os.path.isfile(live) or os.path.islink(live):
            if live is not None:
                self._change(live)
            self._before_making(target, kwargs.get("dst_dir_fd"))
        original(source, target, **kwargs)

    def listed(self, original: Call, path: Any = ".") -> list[Any]:
        """Act for `os.listdir`."""
        found = list(original(path))
        names = {os.fsdecode(name): name for name in found}
        return [names[name] for name in self._recorded(path, [*names])]

    def scanned(self, original: Call, path: Any = ".") -> Any:
        """Act for `os.scandir`."""
        with original(path) as entries:
            found = {os.fsdecode(entry.name): entry for entry in entries}
        return Scan(found[name] for name in self._recorded(path, [*found]))

    def copied(self, original: Call, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        """Act for `shutil.copystat`."""
        self._before_writing(target, creates=False, follow=follow_symlinks)
        original(source, target, follow_symlinks=follow_symlinks)

    def connected(self, original: Call, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for `sqlite3.connect`."""
        text, options = database_path(database, args, kwargs)
        if text is not None and "mode=ro" not in options and "immutable=1" not in options:
            for suffix in ("", *DATABASE_SUFFIXES):
                self._before_writing(text + suffix, creates=True)
        return original(database, *args, **kwargs)

    def _live_path(self, path: Any, dir_fd: int | None = None, *, follow: bool = False) -> str | None:
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

    def _before_writing(
        self, path: Any, *, creates: bool, follow: bool = True, dir_fd: int | None = None
    ) -> None:
        """Keep the original of a file before its contents or attributes are changed."""
        live = self._live_path(path, dir_fd, follow=follow)
        if live is not None and os.path.lexists(live):
            self._change(live)
        elif live is not None and creates:
            self._make(live)

    def _before_making(self, path: Any, dir_fd: int | None) -> str | None:
        """Record a file or folder before it is created; return its path if it needs an original."""
        live = self._live_path(path, dir_fd)
        if live is None or os.path.lexists(live):
            return None
        self._make(live)
        return live

    def _before_removing(self, path: Any, dir_fd: int | None, *, is_folder: bool = False) -> None:
        """Keep a file or an empty folder before it is removed."""
        live = self._live_path(path, dir_fd)
        if live is None or not os.path.lexists(live):
            return
        if is_folder == is_actual_folder(live) and not (is_folder and os.listdir(live)):
            self._enter_change(live)
            self._keep(live, in_place=False)

    @contextmanager
    def _renaming(self, source: Any, target: Any, **folders: int | None) -> Iterator[None]:
        """Record a rename, which the caller executes within this context."""
        old = self._live_path(source, folders.get("src_dir_fd"))
        new = self._live_path(target, folders.get("dst_dir_fd"))
        if old is None or new is None or not _can_rename(old, new):
            if old is not None and new is None:
                self._before_removing(source, folders.get("src_dir_fd"))
            elif new is not None and old is None:
                self._before_writing(target, creates=True, follow=False)
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

    def _recorded(self, path: Any, names: Sequence[str]) -> list[str]:
        """Return the names without the common folder; record them if the run has changed their folder."""
        path = f"/proc/self/fd/{path}" if isinstance(path, int) else path or "."
        live = self._live_path(path, follow=True)
        if live is None:
            return [*names]
        seen = [name for name in names if os.path.join(live, name) != self._folder]
        # A worker of a loader records nothing: other ranks may have more or fewer of them.
        if live in self._changed and os.getpid() == self._process:
            is_main = threading.current_thread() is threading.main_thread()
            with locked(self._lock):  # of two threads, the last listing is the one before
                self._journal.refresh()
                before = self._journal.listings.get((live, is_main))
                changed = None if before and before[-1] == seen else seen
                self._journal.append("listed", live=live, main=is_main, names=changed)
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
        if self._journal.base_of(live) is None:
            return
        status = os.lstat(live)
        if stat.S_ISDIR(status.st_mode):
            self._list_base(live)
        with locked(self._lock):
            self._journal.refresh()
            base = self._journal.base_of(live)
            if base is None:  # another thread or process has kept it meanwhile, and may have changed it
                return
            self._journal.append(
                "kept", live=live, base=base, at=self._kept_at(live, base, status, in_place=in_place)
            )
        if in_place and self._siblings is not None:
            self._siblings.await_closed(status)

    def _kept_at(self, live: str, base: str, status: os.stat_result, *, in_place: bool) -> str | None:
        is_large = stat.S_ISREG(status.st_mode) and status.st_size > LARGE
        if is_large and self._siblings is not None and self._siblings.all_change(base):
            return None
        return self._copy(live, status, may_link=not in_place and status.st_nlink == 1)

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
            with suppress(OSError):  # on another file system
                if may_link:
                    os.link(live, place)
                    return place
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
