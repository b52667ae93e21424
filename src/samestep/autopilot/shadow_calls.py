"""The functions of Python through which a script reaches the file system, redirected for a copy of it."""

import builtins
import bz2
import errno
import functools
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import numpy as np
import safetensors.torch
import torch

from samestep.autopilot.files import Journal, Shadow, absolute, there

_MAKES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_inside = threading.local()
Call = Callable[..., Any]


@contextmanager
def shadowed(shadow: Shadow) -> Iterator[None]:
    """Have everything that this process does to files happen in `shadow`."""
    view = _View(shadow)
    with _redirected(_redirections(view), view.opened):
        yield


@contextmanager
def writing_to(scratch: Path, rank: int) -> Iterator[None]:
    """Have all that this process writes go into a folder of its own within `scratch`, and nowhere else."""
    own = scratch / str(rank)
    own.mkdir(parents=True, exist_ok=True)
    with shadowed(Shadow(own, Journal(own / "journal"))):
        yield


@contextmanager
def noted(journal: Journal) -> Iterator[None]:
    """Have everything that this process makes noted before it is made."""
    notes = _Notes(journal)
    wraps: list[tuple[Any, str, Call]] = [
        (builtins, "open", notes.opened),
        (bz2, "_builtin_open", notes.opened),
        (io, "open", notes.opened),
        (os, "open", notes.opened_low),
        (os, "mkdir", notes.made),
        *((os, name, notes.made_second) for name in ("rename", "replace", "symlink", "link")),
        (torch, "save", notes.made_second),
        (safetensors.torch, "save_file", notes.made_second),
    ]
    with _redirected(wraps, notes.opened):
        yield


@contextmanager
def _redirected(wraps: list[tuple[Any, str, Call]], opened: Call) -> Iterator[None]:
    """Have functions go through what wraps them, and numpy's own `open` through `opened`."""
    with ExitStack() as stack:
        for owner, name, wrap in wraps:
            stack.enter_context(patch.object(owner, name, _outermost(getattr(owner, name), wrap)))
        stack.enter_context(_numpys_own(opened))
        yield


def _numpys_own(wrap: Call) -> AbstractContextManager[Any]:
    """Return what redirects the reference to `open` that `numpy.savetxt` has kept since it was imported."""
    openers = np.lib._datasource._file_openers  # type: ignore[attr-defined]  # noqa: SLF001
    kept = openers._file_openers  # noqa: SLF001 - a dictionary by file extension
    return patch.dict(kept, {None: _outermost(kept[None], wrap)})


class _Notes:
    """Each function that makes something, noting what before it does."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def opened(self, original: Call, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is not None:  # tempfile's, given a folder
            with watched():
                return original(path, mode, *args, **kwargs)
        if set(mode) & set("wax"):
            self._note(path)
        return original(path, mode, *args, **kwargs)

    def opened_low(self, original: Call, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if flags & os.O_CREAT and kwargs.get("dir_fd") is None:
            self._note(path)
        return original(path, flags, *args, **kwargs)

    def made(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(path)
        return original(path, *args, **kwargs)

    def made_second(self, original: Call, first: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(path)
        return original(first, path, *args, **kwargs)

    def _note(self, path: Any) -> None:
        real = absolute(path)
        if real is not None and not there(real):
            self._journal.note(real)


def _outermost(original: Call, wrap: Call) -> Call:
    """Return `original` redirected through `wrap`; what that calls itself is not redirected again."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "busy", False):
            return original(*args, **kwargs)
        _inside.busy = True
        try:
            return wrap(original, *args, **kwargs)
        finally:
            _inside.busy = False

    return call


@contextmanager
def unwatched() -> Iterator[None]:
    """Within, the calling thread reaches the file system as it is."""
    before, _inside.busy = getattr(_inside, "busy", False), True
    try:
        yield
    finally:
        _inside.busy = before


@contextmanager
def watched() -> Iterator[None]:
    """Within what is redirected: redirect what it calls itself."""
    _inside.busy = False
    try:
        yield
    finally:
        _inside.busy = True


class _View:
    """Each function, as it acts on a shadow."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow

    def opened(self, original: Call, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is not None:  # tempfile's, given a folder
            with watched():
                return original(path, mode, *args, **kwargs)
        if isinstance(path, int) or not set(mode) & set("wax+"):
            return self._shadow.look(path, lambda where: original(where, mode, *args, **kwargs))
        if "x" in mode and self._shadow.sees(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        where = self._shadow.open_for(path, truncates="w" in mode, must_be="r" in mode)
        return original(where, mode.replace("x", "w"), *args, **kwargs)

    def opened_low(self, original: Call, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return original(path, flags, *args, **kwargs)
        if not flags & _MAKES:
            return self._shadow.look(path, lambda where: original(where, flags, *args, **kwargs))
        if flags & os.O_CREAT and flags & os.O_EXCL and self._shadow.sees(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        where = self._shadow.open_for(
            path, truncates=bool(flags & os.O_TRUNC), must_be=not flags & os.O_CREAT
        )
        return original(where, flags & ~os.O_EXCL, *args, **kwargs)

    def made_temporary(
        self, original: Call, suffix: Any = None, prefix: Any = None, folder: Any = None, **kwargs: Any
    ) -> Any:
        folder = kwargs.get("dir", folder)
        if folder is not None and os.fsdecode(folder) != tempfile.gettempdir():
            with watched():
                return original(suffix, prefix, folder)
        path = original(suffix, prefix, folder)
        self._shadow.pass_by(os.fsdecode(path))
        return path

    def opened_temporary(self, original: Call, folder: Any, *args: Any) -> Any:
        if not os.path.isdir(folder):
            with watched():
                return original(folder, *args)
        # Under a name that nobody else has; it is removed, or moved to where it is to be.
        number, path = original(folder, *args)
        self._shadow.pass_by(os.fsdecode(path))
        return number, path

    def asked(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        return self._shadow.look(path, lambda where: original(where, *args, **kwargs))

    def changed(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self._shadow.open_for(path, truncates=False), *args, **kwargs)

    def made(self, _: Call, path: Any, mode: int = 0o777, **_kwargs: Any) -> None:
        self._shadow.make_folder(path, mode)

    def removed(self, original: Call, path: Any, **_kwargs: Any) -> None:
        self._shadow.remove(path, original)

    def moved(self, _: Call, source: Any, target: Any, **_kwargs: Any) -> None:
        self._shadow.rename(source, target)

    def entered(self, original: Call, path: Any) -> None:
        self._shadow.enter(path, original)

    def linked(self, original: Call, source: Any, target: Any, **kwargs: Any) -> None:
        original(source, self._shadow.place(target, make=True), **kwargs)

    def listed(self, original: Call, path: Any = ".") -> list[str]:
        return self._shadow.names(path) if not isinstance(path, int) else original(path)

    def scanned(self, original: Call, path: Any = ".") -> Any:
        return original(path) if isinstance(path, int) else _Scan(self._shadow, path)

    def cleared(self, original: Call, path: Any, *_args: Any, **_kwargs: Any) -> None:
        self._shadow.remove(path, original)

    def saved(self, original: Call, value: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(path, "write"):
            return original(value, path, *args, **kwargs)
        return original(value, self._shadow.open_for(path, truncates=True), *args, **kwargs)


def _redirections(view: _View) -> list[tuple[Any, str, Call]]:
    asked = ["stat", "lstat", "access", "readlink"]
    changed = ["chmod", "utime", "truncate"]
    return [
        (builtins, "open", view.opened),
        (bz2, "_builtin_open", view.opened),
        (io, "open", view.opened),
        (os, "open", view.opened_low),
        *((os, name, view.asked) for name in asked),
        *((os, name, view.changed) for name in changed),
        (os, "mkdir", view.made),
        *((os, name, view.removed) for name in ("remove", "unlink", "rmdir")),
        *((os, name, view.moved) for name in ("rename", "replace")),
        *((os, name, view.linked) for name in ("symlink", "link")),
        (os, "chdir", view.entered),
        # Other programs are started on them: compilers.
        (tempfile, "mkdtemp", view.made_temporary),
        (tempfile, "_mkstemp_inner", view.opened_temporary),
        (os, "listdir", view.listed),
        (os, "scandir", view.scanned),
        (shutil, "rmtree", view.cleared),
        (torch, "save", view.saved),
        (safetensors.torch, "save_file", view.saved),
    ]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What `os.scandir` yields, of a shadow."""

    name: str
    path: str
    _place: str

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self._place) and (follow_symlinks or not os.path.islink(self._place))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self._place) and (follow_symlinks or not os.path.islink(self._place))

    def is_symlink(self) -> bool:
        return os.path.islink(self._place)

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._place) if follow_symlinks else os.lstat(self._place)

    def __fspath__(self) -> str:
        return self.path


class _Scan:
    """The iterator that `os.scandir` returns, which is a context manager too."""

    def __init__(self, shadow: Shadow, path: Any) -> None:
        folder = os.fsdecode(path)
        joined = {name: os.path.join(folder, name) for name in shadow.names(path)}
        self._entries = iter([_Entry(name, one, shadow.place(one)) for name, one in joined.items()])

    def __iter__(self) -> "_Scan":
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""
