"""Lists folders with the same names in the same order on all ranks: in the order of rank 0.

A folder that the run has not changed has the same order for all ranks. In a folder that it has changed, the
order depends on the file system: rank 0 records each listing, and the other ranks use the record of theirs.
"""

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from zlib import crc32

from samestep.autopilot.files.journal import PATIENCE_S, Journal

_OTHER_NAMES_S = 2.0  # seconds to wait for a record with the same names, if there is one with other names

_LEAST_NAMES = 2  # entries of a folder that can have another order


class ChangedFolders:
    """The folders in which this process has created, removed or renamed entries."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str) -> None:
        """Record a folder."""
        self._paths.add(path)

    def rename(self, source: str, target: str) -> None:
        """Update the paths in a folder that was renamed."""
        before = [*self._paths]  # another thread may add one meanwhile
        inside = {path for path in before if path == source or path.startswith(f"{source}/")}
        self._paths -= inside.union(
            path for path in before if path == target or path.startswith(f"{target}/")
        )
        self._paths |= {target + path[len(source) :] for path in inside}


class ReplayedListings:
    """Orders listings of the other ranks as rank 0 has recorded them; `pause` runs between reads."""

    def __init__(
        self,
        journal: Journal,
        patience_s: float = PATIENCE_S,
        pause: Callable[[], object] = lambda: time.sleep(0.002),
    ) -> None:
        self._journal, self._patience_s, self._pause = journal, patience_s, pause
        self._process = os.getpid()
        self._taken: Counter[str] = Counter()  # records that the main thread has used, by folder
        self._lock = threading.Lock()
        self._by_threads: Counter[str] = Counter()  # listings by other threads, by folder

    def ordered(self, path: str, names: Sequence[str]) -> list[str]:
        """Return names in the order of rank 0's listing, or unchanged if there is no record of it."""
        record = self._record(path, set(names))
        if record is None:
            return [*names]
        present = set(names)
        return [*(name for name in record if name in present), *sorted(present.difference(record))]

    def _record(self, path: str, names: set[str]) -> list[str] | None:
        """Return the first unused record of a folder with these names."""
        records = self._journal.listings.get((path, True), [])
        if os.getpid() != self._process:
            matching = [record for record in records if set(record) == names]
            return matching[-1] if matching else None
        if threading.current_thread() is not threading.main_thread():
            return self._record_of_threads(path, names)
        began = time.monotonic()
        while True:
            taken = self._taken[path]
            for number in range(taken, len(records)):
                if set(records[number]) == names:
                    self._taken[path] = number + 1
                    return records[number]
            waited = time.monotonic() - began
            if waited > self._patience_s or (len(records) > taken and waited > _OTHER_NAMES_S):
                break
            self._pause()
            self._journal.refresh()
            records = self._journal.listings.get((path, True), [])
        if len(records) > taken:
            self._taken[path] = taken + 1
            return records[taken]
        return None

    def _record_of_threads(self, path: str, names: set[str]) -> list[str] | None:
        """Return a record for a listing by another thread than the main one.

        Several threads may change and list a folder in any order: the n-th listing of it waits for n records,
        and uses one with these names, or else the n-th.
        """
        with self._lock:
            number = self._by_threads[path]
            self._by_threads[path] += 1
        began = time.monotonic()
        while True:
            records = self._journal.listings.get((path, False), [])
            if len(records) > number or time.monotonic() - began > self._patience_s:
                break
            self._pause()
            self._journal.refresh()
        candidates = [*records[number : number + 1], *records]
        same = next((record for record in candidates if set(record) == names), None)
        return same or next(iter(candidates), None)


class ShuffledListings:
    """Lists each folder in another order on each rank other than 0, as another node's file system may.

    Args:
        rank: returns the rank of the calling process.
    """

    def __init__(self, rank: Callable[[], int]) -> None:
        self._rank = rank
        self.folders: list[str] = []  # the folders of which this process got another order

    def ordered(self, path: str, names: Sequence[str]) -> list[str]:
        """Return names in this rank's order."""
        rank = self._rank()
        if not rank or len(names) < _LEAST_NAMES:
            return [*names]
        if path not in self.folders:
            self.folders.append(path)
        shuffled = sorted(names, key=lambda name: crc32(f"{rank} {name}".encode(errors="surrogateescape")))
        return shuffled if shuffled != [*names] else shuffled[::-1]


class Scan(ExitStack):
    """An iterator and context manager, such as `os.scandir` returns."""

    def __init__(self, entries: Iterable[Any]) -> None:
        super().__init__()
        self._entries = iter(entries)
        self.callback(self._clear)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def _clear(self) -> None:
        self._entries = iter(())


class OverlayEntry:
    """An entry of a folder in the view of a rank other than 0.

    Args:
        name: the name, as str or bytes like the path of the folder.
        path: the path of the entry, relative if the path of the folder was.
        place: the absolute path of the entry.
        status: returns the status of a path; of a symbolic link itself with ``follow_symlinks=False``.
        known: the entry of the file system, if it is the same, so that its type needs no system call.
    """

    __slots__ = ("_known", "_place", "_status", "name", "path")

    def __init__(
        self,
        name: Any,
        path: Any,
        place: Any,
        status: Callable[..., os.stat_result],
        known: "os.DirEntry[str] | None" = None,
    ) -> None:
        self.name, self.path, self._place, self._status = name, path, place, status
        self._known = None if known is None or known.is_symlink() else known

    def _mode(self, *, follow_symlinks: bool) -> int:
        try:
            return self._status(self._place, follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether this is a folder."""
        if self._known is not None:
            return self._known.is_dir(follow_symlinks=False)
        return stat.S_ISDIR(self._mode(follow_symlinks=follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether this is a regular file."""
        if self._known is not None:
            return self._known.is_file(follow_symlinks=False)
        return stat.S_ISREG(self._mode(follow_symlinks=follow_symlinks))

    def is_symlink(self) -> bool:
        """Return whether this is a symbolic link."""
        if self._known is not None:
            return False
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def is_junction(self) -> bool:
        """Return False: Linux has no junctions."""
        return False

    def inode(self) -> int:
        """Return the number of the inode."""
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status."""
        return self._status(self._place, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"
