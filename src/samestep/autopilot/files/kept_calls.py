"""Executes redirected file functions on rank 0: keeps the originals, then calls the function itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from samestep.autopilot.files.file_calls import Call, redirected
from samestep.autopilot.files.folder_listings import Scan
from samestep.autopilot.files.kept_originals import OriginalKeeper
from samestep.autopilot.files.overlay_calls import DATABASE_SUFFIXES, database_path
from samestep.autopilot.files.paths import WRITE_FLAGS


@contextmanager
def originals_kept(keeper: OriginalKeeper) -> Iterator[None]:
    """Keep the original of each file that this process is about to change, for the other ranks."""
    with redirected(KeptCalls(keeper)):
        yield


class KeptCalls:
    """The handler of rank 0 for `file_calls`: a method gets the original function and its arguments."""

    def __init__(self, keeper: OriginalKeeper) -> None:
        self._keeper = keeper

    def file_io(self, original: Call, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Act for `open` and `io.FileIO`."""
        if set(mode) & set("wa+"):
            self._keeper.open(path, creates="r" not in mode)
        elif "x" in mode:
            self._keeper.make(path)
        return original(path, mode, *args, **kwargs)

    def opened_low(
        self, original: Call, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> Any:
        """Act for `os.open`."""
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            pass
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            self._keeper.make(path, dir_fd)
        elif flags & WRITE_FLAGS:
            follow = not flags & os.O_NOFOLLOW
            self._keeper.open(path, creates=bool(flags & os.O_CREAT), follow=follow, dir_fd=dir_fd)
        return original(path, flags, mode, dir_fd=dir_fd)

    def changed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions that change contents or attributes of an existing file."""
        self._keeper.change(path, kwargs.get("dir_fd"), follow=kwargs.get("follow_symlinks", True))
        return original(path, *args, **kwargs)

    def link_changed(self, original: Call, path: Any, *args: Any) -> Any:
        """Act for functions that change attributes of a link itself."""
        self._keeper.change(path, follow=False)
        return original(path, *args)

    def special_made(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `os.mkfifo` and `os.mknod`."""
        self._keeper.make(path, kwargs.get("dir_fd"))
        original(path, *args, **kwargs)

    def folder_made(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `os.mkdir`."""
        self._keeper.make(path, kwargs.get("dir_fd"), is_folder=True)
        original(path, *args, **kwargs)

    def removed(self, original: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.remove`."""
        self._keeper.remove(path, dir_fd)
        original(path, dir_fd=dir_fd)

    def folder_removed(self, original: Call, path: Any, *, dir_fd: int | None = None) -> None:
        """Act for `os.rmdir`."""
        self._keeper.remove(path, dir_fd, is_folder=True)
        original(path, dir_fd=dir_fd)

    def tree_removed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `shutil.rmtree`."""
        self._keeper.remove_tree(path, kwargs.get("dir_fd"))
        original(path, *args, **kwargs)

    def renamed(self, original: Call, source: Any, target: Any, **folders: int | None) -> None:
        """Act for `os.rename` and `os.replace`."""
        with self._keeper.renaming(source, target, **folders):
            original(source, target, **folders)

    def linked(self, original: Call, source: Any, target: Any, **kwargs: Any) -> None:
        """Act for `os.link`."""
        self._keeper.link(source, target, **kwargs)
        original(source, target, **kwargs)

    def symlinked(self, original: Call, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        """Act for `os.symlink`."""
        self._keeper.make(target, kwargs.get("dir_fd"))
        original(source, target, *args, **kwargs)

    def listed(self, original: Call, path: Any = ".") -> list[Any]:
        """Act for `os.listdir`."""
        found = list(original(path))
        names = {os.fsdecode(name): name for name in found}
        return [names[name] for name in self._keeper.listed(_folder_path(path), [*names])]

    def scanned(self, original: Call, path: Any = ".") -> Any:
        """Act for `os.scandir`."""
        with original(path) as entries:
            found = {os.fsdecode(entry.name): entry for entry in entries}
        return Scan(found[name] for name in self._keeper.listed(_folder_path(path), [*found]))

    def copied(self, original: Call, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        """Act for `shutil.copystat`."""
        self._keeper.change(target, follow=follow_symlinks)
        original(source, target, follow_symlinks=follow_symlinks)

    def second_written(self, original: Call, first: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for functions whose second argument is a file to overwrite."""
        self._keeper.open(path, creates=True)
        return original(first, path, *args, **kwargs)

    def mapped(self, original: Call, path: Any, shared: bool = False, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - as torch has it
        """Act for `torch.from_file`, which writes to shared files."""
        if shared:
            self._keeper.open(path, creates=True)
        return original(path, shared, *args, **kwargs)

    def connected(self, original: Call, database: Any, *args: Any, **kwargs: Any) -> Any:
        """Act for `sqlite3.connect`."""
        text, options = database_path(database, uri=bool(kwargs.get("uri", args[6:7] == (True,))))
        if text is not None and "mode=ro" not in options and "immutable=1" not in options:
            for suffix in ("", *DATABASE_SUFFIXES):
                self._keeper.open(text + suffix, creates=True)
        return original(database, *args, **kwargs)


def _folder_path(path: Any) -> Any:
    if path is None:
        return "."
    return f"/proc/self/fd/{path}" if isinstance(path, int) else path
