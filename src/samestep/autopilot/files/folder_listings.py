"""Lists the folders of an overlay, on request in another order on each rank."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from zlib import crc32

_LEAST_NAMES = 2  # entries of a folder that can have another order


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
    """An entry of a folder in the view of the script.

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
