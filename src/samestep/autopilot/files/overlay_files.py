"""Gives a script an overlay over the files from before the run: what it writes goes to another folder.

So `verify` can run a script several times, each time with the files that it finds, and change none of them.
`OverlayLayer` holds the changes; `Overlay` acts for the functions that `file_calls` redirects.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from samestep.autopilot.files.file_calls import (
    Call,
    FileAccess,
    close_file,
    redirected,
    redirected_again,
    unredirected,
)
from samestep.autopilot.files.folder_listings import OverlayEntry, Scan, ShuffledListings
from samestep.autopilot.files.overlay_lookup import (
    BASE,
    DATABASE_SUFFIXES,
    MARK,
    WHITEOUT,
    Entry,
    Folder,
    OverlayLookup,
    database_path,
    is_actual_folder,
    join,
    os_error,
    path_text,
)

_DRAFT = ".samestep-draft"
"""Part of the name of a copy until it is complete."""


class OverlayLayer:
    """The files that the script has created, changed, renamed and removed."""

    def __init__(self, lookup: OverlayLookup) -> None:
        self._lookup = lookup
        self.made: list[str] = []  # the paths that this rank has created or written, in this order

    def names(self, folder: Folder) -> list[str]:
        """Return the names in a folder: those from before the run in their order, then new ones, sorted."""
        before = [] if folder.base is None else os.listdir(folder.base)
        changed = (
            []
            if folder.changes is None
            else [name for name in os.listdir(folder.changes) if _DRAFT not in name]
        )
        gone = {name for name in changed if self._lookup.entry(folder, name).where is None}
        return [*(name for name in before if name not in gone), *sorted({*changed} - gone - {*before})]

    def folder_at(self, entry: Entry) -> Folder:
        """Return the folder at an entry."""
        return self._lookup.folder(entry.path)

    def own_folder(self, path: str) -> str:
        """Return the folder of the overlay for this rank's changes in a folder; create a missing one."""
        folder = self._lookup.folder(path)
        if folder.changes is not None:
            return folder.changes
        place = join(self.own_folder(os.path.dirname(path)), os.path.basename(path))
        self._make_like(path, place)
        self._lookup.changed()
        return place

    def _make_like(self, path: str, place: str) -> None:
        """Create a folder with the attributes of the one at `path`."""
        with self._lookup.locked():  # a rename would replace the folder of another process while it is empty
            if is_actual_folder(place):
                return
            draft = _draft(place)
            os.mkdir(draft)
            self._lookup.read(path, lambda where: shutil.copystat(where, draft), follow=False)
            os.rename(draft, place)

    def _own_place(self, entry: Entry) -> str:
        return join(self.own_folder(entry.folder.path), entry.name)

    @contextmanager
    def making(self, entry: Entry) -> Iterator[str]:
        """Yield the actual path at which to create a new file; restore the mark `WHITEOUT` if that fails."""
        if self._lookup.is_common(entry.path):
            yield entry.path
            return
        place = self._own_place(entry)
        was_removed = os.path.islink(place)  # a mark; another process may have made the file meanwhile
        if was_removed:
            with suppress(FileNotFoundError):
                os.unlink(place)
        self.made.append(entry.path)
        try:
            yield place
        finally:
            if was_removed and not os.path.lexists(place):
                os.symlink(WHITEOUT, place)
            self._lookup.changed()

    def own_copy(self, entry: Entry, *, truncates: bool = False) -> str:
        """Return the path of this rank's copy of a file or folder; create the copy if it is missing."""
        assert entry.where is not None
        if self._lookup.is_common(entry.path):
            return entry.path
        if entry.is_folder:
            return self.own_folder(entry.path)
        self.made.append(entry.path)
        if entry.base is None or not (entry.is_link or stat.S_ISREG(entry.mode)):
            return entry.where
        place = self._own_place(entry)
        with self._lookup.locked():  # a second copy would replace what another thread or process has written
            current = self._lookup.entry_at(entry.path, follow=False)
            if current.base is None and current.where is not None:
                return current.where
            draft = _draft(place)
            self._copy(entry, draft, truncates=truncates)
            os.replace(draft, place)
        return place

    def _copy(self, entry: Entry, draft: str, *, truncates: bool) -> None:
        if truncates and not entry.is_link:
            with open(draft, "wb"):
                pass
            self._lookup.read(entry.path, lambda where: shutil.copystat(where, draft), follow=False)
            return

        def copy(where: str) -> None:
            if os.path.lexists(draft):
                os.unlink(draft)
            shutil.copy2(where, draft, follow_symlinks=False)

        self._lookup.read(entry.path, copy, follow=False)

    def drop(self, entry: Entry) -> None:
        """Remove a file, or a folder with its contents."""
        assert entry.where is not None
        place = self._own_place(entry)
        if is_actual_folder(place):
            shutil.rmtree(place)
        elif os.path.lexists(place):
            os.unlink(place)
        if self._lookup.existed(entry.path):
            os.symlink(WHITEOUT, place)
        self._lookup.changed()

    def move(self, old: Entry, new: Entry) -> None:
        """Rename the file or folder at one entry to another entry, which must be free."""
        source, target = self._own_place(old), self._own_place(new)
        self.made.append(new.path)
        folder = self.folder_at(old) if old.is_folder else None
        if os.path.lexists(target):  # a mark
            os.unlink(target)
        if os.path.lexists(source):
            os.rename(source, target)
        elif folder is not None:
            self._make_like(old.path, target)
        else:
            os.symlink(f"{BASE}{old.base}", target)
        if folder is not None and not os.path.lexists(join(target, MARK)):
            os.symlink(folder.base or WHITEOUT, join(target, MARK))
        if self._lookup.existed(old.path):
            os.symlink(WHITEOUT, source)


def _draft(place: str) -> str:
    return f"{place}{_DRAFT}-{os.getpid()}"


class Overlay:
    """The handler of a script for `file_calls`.

    Args:
        root: the folder for what the script writes.
        order: gives each folder another order on each rank; None for that of the file system.
    """

    def __init__(self, root: Path, order: ShuffledListings | None = None) -> None:
        self._lookup = OverlayLookup(str(root))
        self._order = order
        self._layer = OverlayLayer(self._lookup)

    @property
    def made(self) -> list[str]:
        """The paths that the script has created or written, in this order."""
        return self._layer.made

    def exclude(self, folder: Path) -> None:
        """Redirect nothing in a folder."""
        self._lookup.exclude(str(folder))

    def accessed(
        self, original: Call, access: FileAccess, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Act for functions that access one file."""
        path, dir_fd = args[access.at], access.dir_fd
        kwargs.pop("dir_fd", None)

        def call(where: Any) -> Any:
            try:
                return original(*args[: access.at], where, *args[access.at + 1 :], **kwargs)
            except Exception as error:
                _name_paths(error, where, path)
                raise

        if access.kind == "read":
            try:
                result = self._lookup.read(path, call, follow=access.follow, dir_fd=dir_fd)
            except OSError:
                if getattr(original, "__name__", "") == "access":  # which raises no error
                    return False
                raise
        else:
            with self._writing(path, access) as where:
                result = call(where)
        if access.close is close_file:
            _name_file(result, path)
        elif access.close is not None and access.kind == "read":
            self._note_descriptor(result, path, dir_fd)
        return result

    def folder_made(self, _: Call, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Act for `os.mkdir`."""
        entry = self._entry_at(path, dir_fd)
        if entry is None:
            os.mkdir(self._lookup.plain(path, dir_fd), mode)
            return
        if entry.where is not None:
            raise os_error(errno.EEXIST, path)
        with self._layer.making(entry) as place:
            os.mkdir(place, mode)
            if self._lookup.existed(entry.path):
                os.symlink(WHITEOUT, join(place, MARK))
        self._lookup.changed()

    def removed(self, original: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.remove` and `os.rmdir`."""
        is_folder = original.__name__ == "rmdir"
        entry = self._entry_at(path, dir_fd)
        if entry is None:
            original(self._lookup.plain(path, dir_fd))
            return
        _check_removable(entry, path, is_folder=is_folder)
        if is_folder and self._names_at(entry):
            raise os_error(errno.ENOTEMPTY, path)
        self._layer.drop(entry)

    def tree_removed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `shutil.rmtree`."""
        text = self._lookup.text(path, kwargs.get("dir_fd"))
        if text is None:
            original(path, *args, **kwargs)
            return
        try:
            entry = self._lookup.entry_at(text, follow=False)
        except OSError:
            entry = None
        if entry is not None and entry.is_folder:
            self._layer.drop(entry)
            return
        # It raises its error: another one if it opens another file than the one that it has examined.
        with redirected_again():
            self._lookup.unchanged(text, lambda: original(path, *args, **kwargs))

    def renamed(
        self,
        _: Call,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        """Act for `os.rename` and `os.replace`."""
        source_text, target_text = (
            self._lookup.text(source, src_dir_fd),
            self._lookup.text(target, dst_dir_fd),
        )
        if source_text is None or target_text is None:
            plain = self._lookup.plain
            self._rename_between(
                plain(source, src_dir_fd), plain(target, dst_dir_fd), source_text, target_text
            )
            return
        old, new = (
            self._lookup.entry_at(source_text, follow=False),
            self._lookup.entry_at(target_text, follow=False),
        )
        _check_rename(old, new, source, target)
        if old.path == new.path:
            return
        if new.is_folder and self._lookup.unchanged(
            target_text, lambda: self._layer.names(self._layer.folder_at(new))
        ):
            raise os_error(errno.ENOTEMPTY, source, target)
        if new.where is not None:
            if self._lookup.unchanged(source_text, lambda: self._are_same(source_text, target_text)):
                return
            self._layer.drop(new)
        self._layer.move(old, new)
        self._lookup.changed()

    def _names_at(self, entry: Entry) -> list[str]:
        """Return the names in the folder at an entry."""
        return self._lookup.unchanged(entry.path, lambda: self._layer.names(self._layer.folder_at(entry)))

    def _are_same(self, first: str, second: str) -> bool:
        """Return whether two paths are links to one file, of which a rename keeps both."""
        entries = [self._lookup.entry_at(text, follow=False) for text in (first, second)]
        return os.path.samestat(*(os.lstat(str(entry.where)) for entry in entries))

    def _rename_between(
        self, source: Any, target: Any, source_text: str | None, target_text: str | None
    ) -> None:
        """Rename something to or from a path that is not in the overlay."""
        if source_text is not None:
            os.rename(self._lookup.place(source, follow=False), target)
            self._layer.drop(self._lookup.entry_at(source_text, follow=False))
        elif target_text is None:
            os.rename(source, target)
        else:
            if os.path.isdir(source) and self._exists(target):
                self.removed(os.rmdir, target)
            with self._writing(target, FileAccess("write", truncates=True, follow=False)) as place:
                shutil.move(source, place)

    def linked(self, _: Call, source: Any, target: Any, **folders: Any) -> None:
        """Act for `os.link`."""
        entry, where = self._entry_at(source, folders.get("src_dir_fd")), source
        if entry is not None:
            if entry.where is None:
                raise os_error(errno.ENOENT, source, target)
            where = entry.where if entry.is_folder else self._layer.own_copy(entry)
        with self._writing(target, FileAccess("make", dir_fd=folders.get("dst_dir_fd"))) as place:
            os.link(where, place)

    def entered(self, _: Call, path: Any) -> None:
        """Act for `os.chdir` and `os.fchdir`: the process changes to the folder only if it is on disk."""
        path = self._lookup.folder_of(path) if isinstance(path, int) else path
        text = self._lookup.text(path)
        if text is None:
            os.chdir(path)
            self._lookup.current = os.getcwd()
            return
        folder = self._lookup.folder(text)
        self._lookup.current = folder.path
        for place in (folder.path, folder.base, folder.changes):
            if place is not None and os.path.isdir(place):
                os.chdir(place)
                return

    def current(self, original: Call) -> str | bytes:
        """Act for `os.getcwd` and `os.getcwdb`."""
        path: str | bytes = self._lookup.current or original()
        return os.fsencode(path) if original.__name__ == "getcwdb" else path

    def listed(self, original: Call, path: Any = ".") -> list[Any]:
        """Act for `os.listdir`."""
        path = "." if path is None else path
        path = self._lookup.folder_of(path) if isinstance(path, int) else path
        text = self._lookup.text(path)
        if text is None:
            return list(original(path))

        def find() -> tuple[Folder, list[str]]:
            folder = self._lookup.folder(text)
            return folder, self._layer.names(folder)

        folder, names = self._lookup.unchanged(text, find)
        if self._order is not None:
            names = self._order.ordered(folder.path, names)
        return [os.fsencode(name) for name in names] if _is_bytes(path) else names

    def scanned(self, original: Call, path: Any = ".") -> Any:
        """Act for `os.scandir`."""
        path = "." if path is None else path
        folder = self._lookup.folder_of(path) if isinstance(path, int) else path
        text = self._lookup.text(folder)
        if text is None:
            return original(path)
        folder_path = "" if isinstance(path, int) else os.fspath(path)
        top = os.fsencode(text) if _is_bytes(path) else text
        known = {} if isinstance(path, int) else self._unchanged_entries(text)

        def entry(name: Any) -> OverlayEntry:
            places = os.path.join(folder_path, name), os.path.join(top, name)
            return OverlayEntry(name, *places, self._status, known.get(os.fsdecode(name)))

        return Scan([entry(name) for name in self.listed(original, folder)])

    def _unchanged_entries(self, text: str) -> "dict[str, os.DirEntry[str]]":
        """Return the entries of a folder in the file system by name; empty if the script has changed it."""
        folder = self._lookup.folder(text)
        if folder.changes is not None or folder.base is None:
            return {}
        with os.scandir(folder.base) as entries:
            return {entry.name: entry for entry in entries}

    def _status(self, path: Any, *, follow_symlinks: bool) -> os.stat_result:
        with unredirected():  # a script calls this through an entry, outside of the redirected functions
            return self._lookup.read(path, os.lstat, follow=follow_symlinks)

    def copied(self, original: Call, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        """Act for `shutil.copystat`."""
        where = self._lookup.place(source, follow=follow_symlinks)
        access = FileAccess("write", creates=False, follow=follow_symlinks)
        with self._writing(target, access) as place:
            original(where, place, follow_symlinks=follow_symlinks)

    def temporary_made(
        self, original: Call, suffix: Any = None, prefix: Any = None, folder: Any = None, **kwargs: Any
    ) -> Any:
        """Act for `tempfile.mkdtemp`; its folder is not redirected, since other programs may use it."""
        folder = kwargs.get("dir", folder)
        if folder is not None and os.fsdecode(folder) != tempfile.gettempdir():
            with redirected_again():
                return original(suffix, prefix, folder)
        path = original(suffix, prefix, folder)
        self._lookup.share(os.fsdecode(path))
        return path

    def temporary_opened(self, original: Call, folder: Any, *args: Any) -> Any:
        """Act for the temporary files of `tempfile`."""
        if not os.path.isdir(folder):
            with redirected_again():
                return original(folder, *args)
        # The name is unique; the script removes the file, or moves it to its final path.
        number, path = original(folder, *args)
        self._lookup.share(os.fsdecode(path))
        return number, path

    def connected(self, original: Call, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for `sqlite3.connect`."""
        text, options = database_path(database, args, kwargs)
        if text is None:
            return original(database, *args, **kwargs)
        if "mode=ro" in options or "immutable=1" in options:
            return self._lookup.read(text, lambda where: original(f"file:{where}?{options}", *args, **kwargs))
        for suffix in DATABASE_SUFFIXES:
            if self._exists(text + suffix):
                with self._writing(text + suffix, FileAccess("write")):
                    pass
        creates = "mode=rw" not in options or "mode=rwc" in options
        with self._writing(text, FileAccess("write", creates=creates)) as where:
            return original(f"file:{where}?{options}" if options else where, *args, **kwargs)

    def _entry_at(self, path: Any, dir_fd: int | None = None, *, follow: bool = False) -> Entry | None:
        """Return the entry of a path, None outside of the overlay; raise `OSError` without its folder."""
        text = self._lookup.text(path, dir_fd)
        return None if text is None else self._lookup.entry_at(text, follow=follow)

    def _exists(self, path: str) -> bool:
        try:
            entry = self._entry_at(path)
        except OSError:
            return False
        return os.path.lexists(path) if entry is None else entry.where is not None

    @contextmanager
    def _writing(self, path: Any, access: FileAccess) -> Iterator[Any]:
        """Yield the actual path to write: a new file, or a copy of the existing one."""
        is_new = access.exclusive or access.kind == "make"
        try:
            entry = self._entry_at(path, access.dir_fd, follow=access.follow and not is_new)
        except FileNotFoundError:
            if access.kind == "make":
                raise
            yield self._lookup.nowhere(path)
            return
        if entry is None:
            yield self._lookup.plain(path, access.dir_fd)
        elif entry.where is not None and is_new:
            raise os_error(errno.EEXIST, path)
        elif entry.where is not None:
            yield self._layer.own_copy(entry, truncates=access.truncates)
        elif access.creates:
            with self._layer.making(entry) as place:
                yield place
        else:
            yield self._lookup.nowhere(path)

    def _note_descriptor(self, number: int, path: Any, dir_fd: int | None) -> None:
        """Record the folder that a descriptor refers to."""
        text = self._lookup.text(path, dir_fd)
        if text is not None and stat.S_ISDIR(os.fstat(number).st_mode):
            self._lookup.opened(number, self._lookup.folder(text).path)


@contextmanager
def writing_to(
    folder: Path, order: ShuffledListings | None = None, *, but_in: Path | None = None
) -> Iterator[Overlay]:
    """Redirect all writes of this process, and of those that it forks, to a folder.

    Several processes may have one folder: each then finds what the others have written.

    Args:
        folder: the folder.
        order: gives listed folders another order on each rank; None for that of the file system.
        but_in: a folder that is written to as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overlay = Overlay(folder, order)
    if but_in is not None:
        overlay.exclude(but_in)
    with redirected(overlay):
        yield overlay


def _is_bytes(path: Any) -> bool:
    return isinstance(path, (bytes, bytearray))


def _name_file(file: Any, path: Any) -> None:
    """Set the name of an opened file to the path that the script has used."""
    raw = getattr(file, "buffer", file)
    raw = getattr(raw, "raw", raw)
    if not isinstance(path, int) and hasattr(raw, "name"):
        raw.name = path


def _name_paths(error: Exception, where: Any, path: Any) -> None:
    """Let an error of a library state the path that the script has used, and its folder."""
    actual, used = path_text(where), path_text(path)
    if actual is None or used is None or actual == used:
        return

    def named(text: str) -> str:
        text = text.replace(actual, used)
        return text.replace(os.path.dirname(actual), os.path.dirname(used) or ".")

    error.args = tuple(named(value) if isinstance(value, str) else value for value in error.args)
    if isinstance(error, OSError) and isinstance(error.strerror, str):
        error.strerror = named(error.strerror)


def _check_removable(entry: Entry, path: Any, *, is_folder: bool) -> None:
    """Raise the error that Linux raises if a file or folder cannot be removed."""
    if entry.where is None:
        raise os_error(errno.ENOENT, path)
    if is_folder != entry.is_folder:
        raise os_error(errno.ENOTDIR if is_folder else errno.EISDIR, path)


def _check_rename(old: Entry, new: Entry, source: Any, target: Any) -> None:
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
        raise os_error(code, source, target)
