"""Resolves paths of a script: to a file in its overlay, or to the file from before the run.

The overlay is a folder that mirrors absolute paths. Beside files and folders that the script has created or
copied, it holds three kinds of marks, which its forked processes find there too:

- a link to `WHITEOUT`: the script has removed the file from before the run;
- a link to `BASE` and a path: the script has renamed a file that existed before the run;
- a link `MARK` in a folder: the base path of the folder, whose files it includes, or `WHITEOUT` for none.
  Without it, the base path is that of the parent folder plus the name.
"""

import errno
import fcntl
import multiprocessing.process
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from samestep.base import env
from samestep.base.folders import temporary_directory

DATABASE_SUFFIXES = ("-journal", "-wal", "-shm")
"""The suffixes of the files that SQLite creates beside a database."""
_FILES_IN_MEMORY = "/dev/shm/"  # noqa: S108 - scripts keep data and checkpoints there


def path_text(path: Any) -> str | None:
    """Return a path as text; None for a descriptor or for a value that is no path."""
    if isinstance(path, int):
        return None
    try:
        return os.fsdecode(path)
    except TypeError:
        return None


def os_error(code: int, path: Any, target: Any = None) -> OSError:
    """Return the error that Linux raises for a path, or for two."""
    return OSError(code, os.strerror(code), path, None, target)


def is_actual_folder(path: str) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def is_device(path: str) -> bool:
    """Return whether an absolute path names a device."""
    return path.startswith("/dev/") and not path.startswith(_FILES_IN_MEMORY)


class CommonPaths:
    """The paths that are not redirected: they are no files, or all processes share them."""

    def __init__(self, *more: str) -> None:
        configured = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
        # The launcher has chosen it for its workers, or multiprocessing makes one when it needs it.
        sockets = multiprocessing.process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]  # noqa: SLF001
        configured.append(sockets)
        beginnings = (
            *("/proc/", "/sys/"),
            f"{temporary_directory()}/pymp-",  # where multiprocessing binds its sockets
            *(os.path.abspath(path) for path in configured if path),  # compilers read them in other programs
            f"{temporary_directory()}/torchinductor_",
            os.path.expanduser("~/.triton/"),
            *more,
        )
        self._beginnings = dict.fromkeys(beginnings)

    def __contains__(self, path: str) -> bool:
        return is_device(path) or path.startswith(tuple(self._beginnings))

    def add(self, *beginnings: str) -> None:
        """Add prefixes of paths that are not redirected."""
        self._beginnings.update(dict.fromkeys(beginnings))  # at once: another thread may add some, too


def database_path(database: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the path of a SQLite database and its options; None as the path of one in memory."""
    text = path_text(database)
    if text is None or text in ("", ":memory:"):
        return None, ""
    if not kwargs.get("uri", args[6:7] == (True,)) or not text.startswith("file:"):
        return text, ""
    path, _, options = text[len("file:") :].partition("?")
    path = unquote(path)
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    if path in ("", ":memory:") or "mode=memory" in options:
        return None, ""
    return path, options


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing, in a block."""
    with open(path, "ab") as file:  # opened anew, since a lock belongs to the open file
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # also where another thread has forked meanwhile: the child has the open file, too
            fcntl.flock(file, fcntl.LOCK_UN)


T = TypeVar("T")

WHITEOUT = "/dev/null/removed"
BASE = "/dev/null/base"
MARK = ".samestep-base"
_CHANGES = ".samestep-changes"
_SHARED = ".samestep-shared"
_LINKS = 40  # the largest number of symbolic links in the resolution of one path, as in Linux


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder in the view of the script.

    Attributes:
        path: its path, without symbolic links.
        changes: the folder of the overlay that holds the changes in it; None if there is none.
        base: its path before the run; None if it did not exist.
    """

    path: str
    changes: str | None
    base: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder, and the file with this name if there is one.

    Attributes:
        folder: the folder.
        name: the name; empty for the root.
        where: the actual path of the file; None if there is no file.
        base: its path before the run; None for a file that the script has created or changed.
        mode: type and permissions; 0 if there is no file.
    """

    folder: Folder
    name: str
    where: str | None = None
    base: str | None = None
    mode: int = 0

    @property
    def path(self) -> str:
        """The path, without symbolic links above the name."""
        return join(self.folder.path, self.name) if self.name else self.folder.path

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether this is a symbolic link."""
        return stat.S_ISLNK(self.mode)


class _Cache(threading.local):
    """The folders that a thread has found, and the state of the files at that time."""

    def __init__(self) -> None:
        self.state = -1
        self.folders: dict[str, tuple[Folder, int]] = {}


class OverlayLookup:
    """Resolves paths."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._common = CommonPaths(root)
        self._changes = os.path.join(root, _CHANGES)
        self._shared = os.path.join(root, _SHARED)
        self._known = 0  # the part of that file that was read, in bytes
        self._temporary = f"{temporary_directory()}/"
        self._cache = _Cache()
        self.current: str | None = None  # the working folder, after the script has changed it; None before
        self._descriptors: dict[int, tuple[int, str]] = {}

    def text(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return an absolute path; None for a descriptor, or for a file that all processes share."""
        text = path_text(path)
        if not text:
            return None
        if not text.startswith("/"):
            where = self.folder_of(dir_fd) if dir_fd is not None else self.current or os.getcwd()
            text = join(where, text)
        return None if self.is_common(text) else text

    def plain(self, path: Any, dir_fd: int | None) -> Any:
        """Return a path that does not depend on `dir_fd`."""
        text = path_text(path)
        return path if dir_fd is None or text is None else join(self.folder_of(dir_fd), text)

    def is_common(self, text: str) -> bool:
        """Return whether all processes share the file at an absolute path."""
        if text not in self._common and text.startswith(self._temporary):
            self._read_shared()
        return text in self._common

    def exclude(self, path: str) -> None:
        """Exclude a path, and the paths below it, from the overlay of this process."""
        self._common.add(path)

    def share(self, path: str) -> None:
        """Exclude a path, and the paths below it, from the overlay of all processes of the script."""
        with open(self._shared, "ab") as file:
            file.write(os.fsencode(path) + b"\0")
        self._read_shared()

    def _read_shared(self) -> None:
        """Exclude the paths that a process of the script has made since this process last looked."""
        with suppress(OSError), open(self._shared, "rb") as file:
            begin = self._known  # which another thread may change meanwhile
            file.seek(begin)
            paths, end, _ = file.read().rpartition(b"\0")
            self._common.add(*map(os.fsdecode, filter(None, paths.split(b"\0"))))
            self._known = begin + len(paths + end)

    def opened(self, number: int, path: str) -> None:
        """Record the folder of a descriptor."""
        self._descriptors[number] = os.fstat(number).st_ino, path

    def folder_of(self, number: int) -> str:
        """Return the path of a descriptor's folder in the view of the script."""
        inode, path = self._descriptors.get(number, (None, ""))
        opened = os.fstat(number)
        if not stat.S_ISDIR(opened.st_mode):
            raise os_error(errno.ENOTDIR, number)
        if inode == opened.st_ino:
            return path
        place = os.readlink(f"/proc/self/fd/{number}")
        return place[len(self.root) :] or "/" if place.startswith(self.root) else place

    def _state(self) -> int:
        """Return a number that changes with each change of folders, by any process of the script."""
        try:
            state = os.stat(self._changes).st_size
        except OSError:
            state = 0
        if state != self._cache.state:
            self._cache.folders, self._cache.state = {}, state
        return state

    def changed(self) -> None:
        """Invalidate the cached folders, here and in forked processes."""
        with open(self._changes, "ab") as file:
            file.write(b".")

    def locked(self) -> AbstractContextManager[None]:
        """Exclude the other threads and processes with this overlay from a block."""
        return locked(self._changes)

    def entry_at(self, text: str, *, follow: bool = True) -> Entry:
        """Return the entry at an absolute path; raise `OSError` if a folder in it does not exist."""
        return self.unchanged(text, lambda: self._entry_at(text, follow=follow, links=0))

    def folder(self, text: str) -> Folder:
        """Return the folder at an absolute path; raise `OSError` if there is none."""
        return self.unchanged(text, lambda: self._folder(text, 0)[0])

    def existed(self, text: str) -> bool:
        """Return whether there was a file at an absolute path before the run, whatever was done since."""
        head, name = os.path.split(text)
        return self.unchanged(text, lambda: self.beneath(self._folder(head, 0)[0], name)).where is not None

    def unchanged(self, text: str, find: Callable[[], T]) -> T:
        """Return the result of `find`, or raise its error for `text`; repeat it if folders change."""
        try:
            return _repeated(self._state, find)
        except OSError as error:
            if error.filename is not None:
                error.filename = text  # the requested path, not the target of a link
            raise

    def place(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> Any:
        """Return the actual path to read; if there is no file, a path that does not exist."""
        text = self.text(path, dir_fd)
        if text is None:
            return self.plain(path, dir_fd)
        try:
            where = self.entry_at(text, follow=follow).where
        except FileNotFoundError:
            where = None
        return where or self.nowhere(text)

    def nowhere(self, path: Any) -> str:
        """Return a path that does not exist, with the name of another one."""
        return join(self.root, f"dev/null/{os.path.basename(os.fsdecode(path))}")

    def read(
        self,
        path: Any,
        how: Callable[[Any], T],
        *,
        follow: bool = True,
        dir_fd: int | None = None,
    ) -> T:
        """Return the result of `how` for the actual path."""
        return how(self.place(path, follow=follow, dir_fd=dir_fd))

    def entry(self, folder: Folder, name: str) -> Entry:
        """Return the entry of a name in a folder."""
        if name == MARK:
            return Entry(folder, name)
        if folder.changes is not None:
            place = join(folder.changes, name)
            mode = _mode(place)
            if stat.S_ISLNK(mode):
                target = os.readlink(place)
                if target == WHITEOUT:
                    return Entry(folder, name)
                if target.startswith(BASE):
                    return self._in_base(folder, name, target[len(BASE) :])
            if mode and place != self._changes:
                return Entry(folder, name, place, None, mode)
        return self.beneath(folder, name)

    def beneath(self, folder: Folder, name: str) -> Entry:
        """Return the entry of a name in a folder before the run, without the script's changes."""
        if folder.base is None:
            return Entry(folder, name)
        return self._in_base(folder, name, join(folder.base, name))

    def _in_base(self, folder: Folder, name: str, base: str) -> Entry:
        mode = _mode(base)
        return Entry(folder, name, base, base, mode) if mode else Entry(folder, name)

    def _entry_at(self, text: str, *, follow: bool, links: int) -> Entry:
        head, name = os.path.split(text.rstrip("/"))
        if name in ("", ".", ".."):
            folder, _ = self._folder(text, links)
            if folder.path == "/":
                return Entry(folder, "", folder.base, folder.base, stat.S_IFDIR)
            above, _ = self._folder(os.path.dirname(folder.path), 0)
            return self.entry(above, os.path.basename(folder.path))
        folder, used = self._folder(head, links)
        entry = self.entry(folder, name)
        if follow and entry.is_link and entry.where is not None:
            target = join(folder.path, os.readlink(entry.where))
            return self._entry_at(target, follow=True, links=_one_more(used, text))
        return entry

    def _folder(self, text: str, links: int) -> tuple[Folder, int]:
        """Return a folder, and the number of symbolic links followed so far, with `links` earlier ones."""
        known = self._cache.folders.get(text)
        if known is None:
            folder, used = self._find_folder(text, links)
            known = self._cache.folders[text] = folder, used - links
        return known[0], links + known[1]

    def _find_folder(self, text: str, links: int) -> tuple[Folder, int]:
        head, name = os.path.split(text.rstrip("/"))
        if not name:
            return Folder("/", self.root, "/"), links
        above, used = self._folder(head, links)
        if name == ".":
            return above, used
        if name == "..":
            return self._folder(os.path.dirname(above.path), used)
        entry = self.entry(above, name)
        if entry.where is None:
            raise os_error(errno.ENOENT, text)
        if entry.is_link:
            target = join(above.path, os.readlink(entry.where))
            return self._folder(target, _one_more(used, text))
        if not entry.is_folder:
            raise os_error(errno.ENOTDIR, text)
        path = join(above.path, name)
        if entry.base is not None:
            return Folder(path, None, entry.base), used
        return Folder(path, entry.where, self._base_of_own(above, name, entry.where)), used

    def _base_of_own(self, above: Folder, name: str, place: str) -> str | None:
        mark = join(place, MARK)
        if _mode(mark):
            base = os.readlink(mark)
            return None if base == WHITEOUT else base
        entry = self.beneath(above, name)
        return entry.base if entry.is_folder else None


def _repeated(version: Callable[[], int], attempt: Callable[[], T]) -> T:
    """Return the result or the error of an attempt during which the version of the files has not changed."""
    before = version()
    while True:
        try:
            result = attempt()
        except OSError:
            if (now := version()) == before:
                raise
        else:
            if (now := version()) == before:
                return result
        before = now


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder, or the name if it is an absolute path."""
    if name.startswith("/"):
        return name
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


def _one_more(links: int, path: str) -> int:
    if links >= _LINKS:
        raise os_error(errno.ELOOP, path)
    return links + 1


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
