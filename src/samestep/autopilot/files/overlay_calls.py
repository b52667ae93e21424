"""Executes redirected file functions on the overlay of a rank other than 0."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from samestep.autopilot.files.file_calls import Call, redirected, redirected_again, unredirected
from samestep.autopilot.files.folder_listings import OverlayEntry, Scan
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.overlay_files import Overlay
from samestep.autopilot.files.paths import WRITE_FLAGS, path_text


@contextmanager
def overlaid(overlay: Overlay) -> Iterator[None]:
    """Redirect all file accesses of this process to `overlay`."""
    with redirected(OverlayCalls(overlay)):
        yield


@contextmanager
def writing_to(scratch: Path, rank: int) -> Iterator[None]:
    """Redirect all writes of this process to a private folder within `scratch`."""
    own = scratch / str(rank)
    own.mkdir(parents=True, exist_ok=True)
    with overlaid(Overlay(own, Journal(own / "journal"))):
        yield


class OverlayCalls:
    """The handler of a rank other than 0 for `file_calls`: a method gets the function and its arguments."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def file_io(self, original: Call, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Act for `open` and `io.FileIO`."""
        if isinstance(path, int) or not set(mode) & set("wax+"):
            file = self._overlay.read(
                path, lambda where: original(where, mode, *args, **kwargs), close=_close
            )
        else:
            how = {"creates": "r" not in mode, "exclusive": "x" in mode, "truncates": "w" in mode}
            with self._overlay.writing(path, **how) as where:
                file = original(where, mode, *args, **kwargs)
        _name_file(file, path)
        return file

    def opened_low(
        self, original: Call, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        """Act for `os.open`."""
        follow = not flags & os.O_NOFOLLOW
        if not flags & WRITE_FLAGS or flags & os.O_TMPFILE == os.O_TMPFILE:
            number: int = self._overlay.read(
                path,
                lambda where: original(where, flags, mode),
                follow=follow,
                dir_fd=dir_fd,
                close=os.close,
            )
            text = self._overlay.lookup.text(path, dir_fd)
            if text is not None and stat.S_ISDIR(os.fstat(number).st_mode):
                self._overlay.lookup.opened(number, self._overlay.lookup.folder(text).path)
            return number
        with self._overlay.writing(
            path,
            creates=bool(flags & os.O_CREAT),
            exclusive=bool(flags & os.O_CREAT and flags & os.O_EXCL),
            truncates=bool(flags & os.O_TRUNC),
            follow=follow,
            dir_fd=dir_fd,
        ) as where:
            return int(original(where, flags, mode))

    def inspected(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions that read attributes."""
        follow, dir_fd = kwargs.get("follow_symlinks", True), kwargs.pop("dir_fd", None)
        if original.__name__ == "access" and not self._overlay.exists(path, follow=follow) and dir_fd is None:
            return False
        return self._overlay.read(
            path, lambda where: original(where, *args, **kwargs), follow=follow, dir_fd=dir_fd
        )

    def link_inspected(self, original: Call, path: Any, *, dir_fd: int | None = None) -> Any:
        """Act for functions that read attributes or the target of a link itself."""
        return self._overlay.read(path, original, follow=False, dir_fd=dir_fd)

    def changed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions that change contents or attributes of an existing file."""
        dir_fd = kwargs.pop("dir_fd", None)
        follow = kwargs.get("follow_symlinks", True)
        with self._overlay.writing(path, creates=False, follow=follow, dir_fd=dir_fd) as where:
            return original(where, *args, **kwargs)

    def link_changed(self, original: Call, path: Any, *args: Any) -> Any:
        """Act for functions that change attributes of a link itself."""
        with self._overlay.writing(path, creates=False, follow=False) as where:
            return original(where, *args)

    def special_made(
        self, original: Call, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any
    ) -> None:
        """Act for `os.mkfifo` and `os.mknod`."""
        with self._overlay.making(path, dir_fd) as where:
            original(where, *args, **kwargs)

    def folder_made(self, _: Call, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Act for `os.mkdir`."""
        self._overlay.make_folder(path, mode, dir_fd)

    def removed(self, _: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.remove`."""
        self._overlay.remove(path, dir_fd)

    def folder_removed(self, _: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.rmdir`."""
        self._overlay.remove(path, dir_fd, is_folder=True)

    def tree_removed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `shutil.rmtree`."""
        dir_fd = kwargs.get("dir_fd")
        if self._overlay.lookup.text(path, dir_fd) is None:
            original(path, *args, **kwargs)
        elif not self._overlay.remove_tree(path, dir_fd):
            with redirected_again():
                original(path, *args, **kwargs)

    def renamed(self, _: Call, source: Any, target: Any, **folders: int | None) -> None:
        """Act for `os.rename` and `os.replace`."""
        self._overlay.rename(source, target, **folders)

    def linked(self, _: Call, source: Any, target: Any, **kwargs: Any) -> None:
        """Act for `os.link`."""
        kwargs.pop("follow_symlinks", None)
        self._overlay.link(source, target, **kwargs)

    def symlinked(
        self, original: Call, source: Any, target: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any
    ) -> None:
        """Act for `os.symlink`."""
        with self._overlay.making(target, dir_fd) as where:
            original(source, where, *args, **kwargs)

    def entered(self, _: Call, path: Any) -> None:
        """Act for `os.chdir` and `os.fchdir`."""
        self._overlay.enter(self._overlay.lookup.folder_of(path) if isinstance(path, int) else path)

    def current(self, original: Call) -> str:
        """Act for `os.getcwd`."""
        return self._overlay.lookup.current or str(original())

    def current_bytes(self, original: Call) -> bytes:
        """Act for `os.getcwdb`."""
        current = self._overlay.lookup.current
        return bytes(original()) if current is None else os.fsencode(current)

    def listed(self, original: Call, path: Any = ".") -> list[Any]:
        """Act for `os.listdir`."""
        path = "." if path is None else path
        if isinstance(path, int):
            path = self._overlay.lookup.folder_of(path)
        if self._overlay.lookup.text(path) is None:
            return list(original(path))
        names = self._overlay.names(path)
        return [os.fsencode(name) for name in names] if _is_bytes(path) else names

    def scanned(self, original: Call, path: Any = ".") -> Any:
        """Act for `os.scandir`."""
        path = "." if path is None else path
        folder = self._overlay.lookup.folder_of(path) if isinstance(path, int) else path
        text = self._overlay.lookup.text(folder)
        if text is None:
            return original(path)
        names = self.listed(original, folder)
        if isinstance(path, int):
            return Scan([OverlayEntry(name, name, os.path.join(text, name), self._status) for name in names])
        given = os.fspath(path)
        top = os.fsencode(text) if _is_bytes(path) else text
        known = self._overlay.unchanged_entries(folder)
        return Scan(
            [
                OverlayEntry(
                    name,
                    os.path.join(given, name),
                    os.path.join(top, name),
                    self._status,
                    known.get(os.fsdecode(name)),
                )
                for name in names
            ]
        )

    def copied(self, original: Call, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        """Act for `shutil.copystat`."""
        where = self._overlay.find(source, follow=follow_symlinks)
        with self._overlay.writing(target, creates=False, follow=follow_symlinks) as own:
            original(where, own, follow_symlinks=follow_symlinks)

    def temporary_made(
        self, original: Call, suffix: Any = None, prefix: Any = None, folder: Any = None, **kwargs: Any
    ) -> Any:
        """Act for `tempfile.mkdtemp`; its folder is not redirected, since other programs may use it."""
        folder = kwargs.get("dir", folder)
        if folder is not None and os.fsdecode(folder) != tempfile.gettempdir():
            with redirected_again():
                return original(suffix, prefix, folder)
        path = original(suffix, prefix, folder)
        self._overlay.lookup.share(os.fsdecode(path))
        return path

    def temporary_opened(self, original: Call, folder: Any, *args: Any) -> Any:
        """Act for the temporary files of `tempfile`."""
        if not os.path.isdir(folder):
            with redirected_again():
                return original(folder, *args)
        # The name is unique; the script removes the file, or moves it to its final path.
        number, path = original(folder, *args)
        self._overlay.lookup.share(os.fsdecode(path))
        return number, path

    def second_read(self, original: Call, first: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions whose second argument is a file to read."""
        return self._overlay.read(path, lambda where: original(first, _as_text(where), *args, **kwargs))

    def first_read(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions whose first argument is a file to read."""
        return self._overlay.read(path, lambda where: original(_as_text(where), *args, **kwargs))

    def second_written(self, original: Call, first: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions whose second argument is a file to overwrite."""
        with self._overlay.writing(path, truncates=True) as where:
            return original(first, _as_text(where), *args, **kwargs)

    def mapped(self, original: Call, path: Any, shared: bool = False, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - as torch has it
        """Act for `torch.from_file`, which writes to shared files."""
        if not shared:
            return self.first_read(original, path, shared, *args, **kwargs)
        with self._overlay.writing(path) as where:
            return original(_as_text(where), shared, *args, **kwargs)

    def connected(self, original: Call, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for `sqlite3.connect`."""
        text, options = database_path(database, uri=bool(kwargs.get("uri", args[6:7] == (True,))))
        if text is None:
            return original(database, *args, **kwargs)
        if "mode=ro" in options or "immutable=1" in options:
            return self._overlay.read(
                text, lambda where: original(f"file:{where}?{options}", *args, **kwargs)
            )
        for suffix in DATABASE_SUFFIXES:
            if self._overlay.exists(text + suffix):
                with self._overlay.writing(text + suffix):
                    pass
        creates = "mode=rw" not in options or "mode=rwc" in options
        with self._overlay.writing(text, creates=creates) as where:
            return original(f"file:{where}?{options}" if options else where, *args, **kwargs)

    def _status(self, path: Any, *, follow_symlinks: bool) -> os.stat_result:
        with unredirected():  # a script calls this through an entry, outside of the redirected functions
            return self._overlay.status(path, follow_symlinks=follow_symlinks)


DATABASE_SUFFIXES = ("-journal", "-wal", "-shm")
"""The suffixes of the files that SQLite creates beside a database."""


def database_path(database: Any, *, uri: bool) -> tuple[str | None, str]:
    """Return the path of a SQLite database and its options; None as the path of one in memory."""
    text = path_text(database)
    if text is None or text in ("", ":memory:"):
        return None, ""
    if not uri or not text.startswith("file:"):
        return text, ""
    path, _, options = text[len("file:") :].partition("?")
    path = unquote(path)
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    if path in ("", ":memory:") or "mode=memory" in options:
        return None, ""
    return path, options


def _close(file: Any) -> None:
    if hasattr(file, "close"):
        file.close()


def _is_bytes(path: Any) -> bool:
    return isinstance(path, (bytes, bytearray))


def _as_text(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _name_file(file: Any, path: Any) -> None:
    """Set the name of an opened file to the path that the script has used."""
    raw = getattr(file, "buffer", file)
    raw = getattr(raw, "raw", raw)
    if not isinstance(path, int) and hasattr(raw, "name"):
        raw.name = path
