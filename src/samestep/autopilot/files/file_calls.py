"""Redirects the functions of Python, numpy, torch and others through which a script reaches files.

Most functions access one file: their arguments are parsed to a `FileAccess`, which the handler executes by
its method `accessed`. For each other function, the table names a method of the handler; without that method,
it is not redirected. `overlay_files` has the handler.
"""

import builtins
import functools
import io
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import safetensors.torch
import torch

from samestep.hooks import declarations
from samestep.hooks.registry import (
    attach,
    attach_to,
    once_imported,
    references_replaced,
    search_references,
)

Call: TypeAlias = Callable[..., Any]

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = (str, bytes, os.PathLike)
_FIRST = ("file", "path", "filename", "name", "src", "source", "where", "input_file", "database")
"""The keywords by which functions take a path that is their first argument, or that of a method."""
_inside = threading.local()


@dataclass(frozen=True, slots=True)
class FileAccess:
    """The access of a call to one file.

    Args:
        kind: ``make`` creates a new file at a free path; ``write`` changes a file, or creates it.
        at: the position of the path among the arguments.
        creates: whether a missing file is created.
        exclusive: whether an existing file is an error.
        truncates: whether the contents of an existing file are dropped.
        follow: whether symbolic links are followed.
        dir_fd: the descriptor of the folder that the path is relative to.
        close: closes what the call opens; None if it opens nothing.
    """

    kind: Literal["read", "write", "make"]
    at: int = 0
    creates: bool = True
    exclusive: bool = False
    truncates: bool = False
    follow: bool = True
    dir_fd: int | None = None
    close: Callable[[Any], object] | None = None


Parse: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], FileAccess | None]
"""Returns the access of a call with these arguments; None for a call that is not redirected."""


def _accessing(kind: Literal["read", "write", "make"], at: int = 0, **how: Any) -> Parse:
    """Return the parser for functions whose access depends only on `follow_symlinks` and `dir_fd`."""

    def parse(_: Sequence[Any], kwargs: Mapping[str, Any]) -> FileAccess:
        follow = how.get("follow", kwargs.get("follow_symlinks", True))
        return FileAccess(kind, at, dir_fd=kwargs.get("dir_fd"), **{**how, "follow": follow})

    return parse


_BEFORE_OPENER = 7  # parameters of `open` before its last one, the opener


def _of_mode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FileAccess | None:
    """Parse the arguments of `open` and `io.FileIO`; an opener calls `os.open` itself."""
    if len(args) > _BEFORE_OPENER or kwargs.get("opener") is not None:
        return None
    mode = set(args[1] if len(args) > 1 else kwargs.get("mode", "r"))
    if isinstance(args[0], int) or not mode & set("wax+"):
        return FileAccess("read", close=close_file)
    return FileAccess(
        "write",
        creates="r" not in mode,
        exclusive="x" in mode,
        truncates="w" in mode,
        close=close_file,
    )


def _of_initializer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FileAccess | None:
    """Parse the arguments of the initializer of a file; ``w-`` of `h5py` is the mode ``x`` of `open`."""
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "r")
    access = _of_mode(args[1:2], {"mode": "x" if mode == "w-" else mode or "r"})
    return None if access is None else replace(access, at=1, close=None)


def _of_flags(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FileAccess:
    """Parse the arguments of `os.open`; an unnamed temporary file is no file of the script."""
    flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    is_reading, creates = not flags & _WRITE_FLAGS, bool(flags & os.O_CREAT)
    return FileAccess(
        "read" if is_reading or flags & os.O_TMPFILE == os.O_TMPFILE else "write",
        creates=creates,
        exclusive=creates and bool(flags & os.O_EXCL),
        truncates=bool(flags & os.O_TRUNC),
        follow=not flags & os.O_NOFOLLOW,
        dir_fd=kwargs.get("dir_fd"),
        close=os.close,
    )


def _of_mapping(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FileAccess:
    """Parse the arguments of `torch.from_file`, which writes to shared files."""
    is_shared = args[1] if len(args) > 1 else kwargs.get("shared", False)
    return FileAccess("write" if is_shared else "read")


def close_file(file: Any) -> None:
    """Close what `open` or the initializer of `io.FileIO` has returned."""
    if hasattr(file, "close"):
        file.close()


def _table() -> list[tuple[Any, str, str | Parse]]:
    """Return the redirected functions: owner, name, and the parser or the handler's method."""
    reads, overwrites_second = _accessing("read"), _accessing("write", 1, truncates=True)
    names: Mapping[tuple[str, ...], str | Parse] = {
        ("stat", "access", "statvfs", "pathconf", "getxattr", "listxattr"): reads,
        ("lstat", "readlink"): _accessing("read", follow=False),
        ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr"): _accessing(
            "write", creates=False
        ),
        ("lchown",): _accessing("write", creates=False, follow=False),
        ("mkfifo", "mknod"): _accessing("make"),
        ("symlink",): _accessing("make", 1),
        ("open",): _of_flags,
        ("rename", "replace"): "renamed",
        ("remove", "unlink", "rmdir"): "removed",
        ("mkdir",): "folder_made",
        ("link",): "linked",
        ("listdir",): "listed",
        ("scandir",): "scanned",
        ("chdir", "fchdir"): "entered",
        ("getcwd", "getcwdb"): "current",
    }
    native = torch._C  # noqa: SLF001 - no public spelling
    return [
        *((os, name, how) for group, how in names.items() for name in group if hasattr(os, name)),
        (builtins, "open", _of_mode),
        (io, "FileIO", _of_mode),
        (shutil, "rmtree", "tree_removed"),
        (shutil, "copystat", "copied"),  # as a whole: it goes through sets of functions
        (tempfile, "mkdtemp", "temporary_made"),
        (tempfile, "_mkstemp_inner", "temporary_opened"),
        (sqlite3, "connect", "connected"),
        (native.PyTorchFileWriter, "__init__", overwrites_second),
        (native.PyTorchFileReader, "__init__", _accessing("read", 1)),
        (native, "import_ir_module", _accessing("read", 1)),
        (native.ScriptModule, "save", overwrites_second),
        (native.ScriptFunction, "save", overwrites_second),
        (torch, "from_file", _of_mapping),
        (torch.UntypedStorage, "from_file", _of_mapping),
        (safetensors, "serialize_file", overwrites_second),
        (safetensors, "safe_open", reads),
        (torch.autograd.profiler.profile, "export_chrome_trace", overwrites_second),
        (torch.autograd.profiler.profile, "export_stacks", overwrites_second),
    ]


def _table_of_libraries() -> Mapping[str, Sequence[tuple[str, str, Parse]]]:
    """Return the redirected functions of libraries in C that samestep does not import.

    Some of them read what Python writes, as Arrow does with data sets.

    Returns:
        for each module, once it is imported: owner, name, parser.
    """
    reads, reads_second = _accessing("read"), _accessing("read", 1)
    overwrites, overwrites_second = (_accessing("write", at, truncates=True) for at in (0, 1))
    names: Mapping[str, Mapping[str, Parse]] = {
        "pyarrow": {
            "memory_map": _of_mode,
            "input_stream": reads,
            "output_stream": overwrites,
            "OSFile": _of_mode,
        },
        "pyarrow.csv": {"read_csv": reads, "open_csv": reads, "write_csv": overwrites_second},
        "pyarrow.json": {"read_json": reads},
        "pyarrow.parquet": {"read_table": reads, "write_table": overwrites_second},
        "pyarrow.parquet:ParquetFile": {"__init__": reads_second},
        "pyarrow.parquet:ParquetWriter": {"__init__": overwrites_second},
        "h5py:File": {"__init__": _of_initializer},
        "soundfile:SoundFile": {"__init__": _of_initializer},
        "tokenizers:Tokenizer": {"from_file": reads, "save": overwrites_second},
        "cv2": {"imread": reads, "imwrite": overwrites},
    }
    table: dict[str, list[tuple[str, str, Parse]]] = {}
    for owner, functions in names.items():
        of_module = table.setdefault(owner.partition(":")[0], [])
        of_module += [(owner, name, parse) for name, parse in functions.items()]
    return table


def find_references() -> None:
    """Find all references to the functions of the table, for this process and those that it forks."""
    modules = ((owner, name) for owner, name, _ in _table() if not isinstance(owner, type))
    search_references(getattr(owner, name) for owner, name in modules if hasattr(owner, name))


@contextmanager
def redirected(handler: Any) -> Iterator[None]:
    """Redirect the functions of the table to methods of `handler`, in every module that refers to them."""
    changed: dict[int, tuple[Any, Any]] = {}
    with ExitStack() as stack:
        for owner, name, how in _table():
            original = getattr(owner, name, None)
            if original is None or not (callable(how) or hasattr(handler, how)):
                continue
            if isinstance(owner, type):
                hook = declarations.file_function(f"{owner.__module__}:{owner.__qualname__}", name)
                make = partial(_redirected, name=name, handler=handler, how=how)
                stack.callback(attach_to(owner, hook, make))
            else:
                call = _file_io(original, handler) if name == "FileIO" else None
                changed[id(original)] = original, call or _redirecting(original, handler, how)
        stack.enter_context(references_replaced(list(changed.values())))
        for library, functions in _table_of_libraries().items():
            then = partial(_redirect_library, functions, handler, stack)
            stack.enter_context(once_imported(library, then))
        yield


def _redirect_library(functions: Sequence[tuple[str, str, Parse]], handler: Any, stack: ExitStack) -> None:
    for owner, name, parse in functions:
        make = partial(_redirected, name=name, handler=handler, how=parse)
        stack.callback(attach(declarations.file_function(owner, name), make))


def _redirected(original: Any, name: str, handler: Any, how: str | Parse) -> Any:
    call = _redirecting(original, handler, how)
    if isinstance(original, type):
        return _Calling(original.__name__, (), {"original": original, "call": staticmethod(call)})
    return staticmethod(call) if name == "from_file" else call


class _Calling(type):
    """The type of a class that stands for another: to call it calls a function."""

    original: type
    call: Call

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.call(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.original)


def _redirecting(original: Any, handler: Any, how: str | Parse) -> Any:
    """Return `original` redirected; functions that it calls are not redirected again."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "busy", False):
            return original(*args, **kwargs)
        args = _positional(args, kwargs)
        if isinstance(how, str):
            return _outermost(args, getattr(handler, how), original, *args, **kwargs)
        access = how(args, kwargs) if args else None
        if access is None or len(args) <= access.at:
            return original(*args, **kwargs)
        return _outermost(args, handler.accessed, original, access, args, kwargs)

    return call


def _outermost(paths: Sequence[Any], handle: Call, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a method of a handler; name the paths that the script passed in its error."""
    _inside.busy = True
    try:
        return handle(*args, **kwargs)
    except OSError as error:
        if error.filename is not None and paths and isinstance(paths[0], _PATHS):
            error.filename = os.fspath(paths[0])
            if error.filename2 is not None and len(paths) > 1 and isinstance(paths[1], _PATHS):
                error.filename2 = os.fspath(paths[1])
        raise
    finally:
        _inside.busy = False


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments, including paths that were passed by keyword."""
    if len(args) <= 1:  # none, or the object of a method
        args = (*args, *(kwargs.pop(name) for name in _FIRST if name in kwargs))
    return (*args, kwargs.pop("dst")) if len(args) == 1 and "dst" in kwargs else args


def _file_io(original: type, handler: Any) -> type:
    """Return a class that opens files through the handler; instance checks treat it as the original."""

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, original)

    class FileIO(original, metaclass=Meta):  # type: ignore[misc]
        def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
            _redirecting(super().__init__, handler, _of_mode)(file, *args, **kwargs)
            if not isinstance(file, int):
                self.name = file

    return FileIO


@contextmanager
def unredirected() -> Iterator[None]:
    """Let the calling thread access files directly."""
    before, _inside.busy = getattr(_inside, "busy", False), True
    try:
        yield
    finally:
        _inside.busy = before


def redirect_in_fork() -> None:
    """Redirect the accesses of this process, which was forked in a block of `unredirected`."""
    _inside.busy = False


@contextmanager
def redirected_again() -> Iterator[None]:
    """Redirect the functions that a redirected function calls, too."""
    _inside.busy = False
    try:
        yield
    finally:
        _inside.busy = True
