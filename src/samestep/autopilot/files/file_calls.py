"""Redirects the functions of Python, numpy and torch through which a script reaches files.

The table below names the handler's method for each function. `overlay_calls` has the handler of the other
ranks, `kept_calls` that of rank 0. A function for which the handler has no method is not redirected.
"""

import builtins
import functools
import io
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import safetensors.torch
import torch

from samestep.autopilot.files.suppressed_writes import refuse_change
from samestep.hooks import declarations
from samestep.hooks.references import references_replaced
from samestep.hooks.registry import attached_to, instead

Call: TypeAlias = Callable[..., Any]

_inside = threading.local()
_FIRST = ("file", "path", "filename", "src", "database")
"""The keywords by which functions take a path that is their first argument."""


def _table() -> list[tuple[Any, str, str]]:
    """Return the redirected functions: owner, name, and method of the handler."""
    names = {
        "inspected": ("stat", "access", "statvfs", "pathconf", "getxattr", "listxattr"),
        "link_inspected": ("lstat", "readlink"),
        "changed": ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr"),
        "link_changed": ("lchown",),
        "special_made": ("mkfifo", "mknod"),
        "renamed": ("rename", "replace"),
        "removed": ("remove", "unlink"),
        "folder_removed": ("rmdir",),
        "folder_made": ("mkdir",),
        "opened_low": ("open",),
        "linked": ("link",),
        "symlinked": ("symlink",),
        "listed": ("listdir",),
        "scanned": ("scandir",),
        "entered": ("chdir", "fchdir"),
        "current": ("getcwd",),
        "current_bytes": ("getcwdb",),
    }
    table = [(os, name, method) for method, group in names.items() for name in group if hasattr(os, name)]
    return [
        *table,
        (builtins, "open", "file_io"),
        (io, "FileIO", "file_io"),
        (shutil, "rmtree", "tree_removed"),
        (shutil, "copystat", "copied"),  # as a whole: it goes through sets of functions
        (tempfile, "mkdtemp", "temporary_made"),
        (tempfile, "_mkstemp_inner", "temporary_opened"),
        (sqlite3, "connect", "connected"),
        *_of_torch(),
    ]


def _of_torch() -> list[tuple[Any, str, str]]:
    native = torch._C  # noqa: SLF001 - no public spelling
    return [
        (native.PyTorchFileWriter, "__init__", "second_written"),
        (native.PyTorchFileReader, "__init__", "second_read"),
        (native, "import_ir_module", "second_read"),
        (native.ScriptModule, "save", "second_written"),
        (native.ScriptFunction, "save", "second_written"),
        (torch, "from_file", "mapped"),
        (torch.UntypedStorage, "from_file", "mapped"),
        (safetensors, "serialize_file", "second_written"),
        (safetensors, "safe_open", "first_read"),
        (torch.autograd.profiler.profile, "export_chrome_trace", "second_written"),
        (torch.autograd.profiler.profile, "export_stacks", "second_written"),
    ]


@contextmanager
def redirected(handler: Any) -> Iterator[None]:
    """Redirect the functions of the table to methods of `handler`, in every module that refers to them."""
    changed: dict[int, tuple[Any, Any]] = {}
    with ExitStack() as stack:
        for owner, name, method in _table():
            original = getattr(owner, name, None)
            if original is None or not hasattr(handler, method):
                continue
            call = _call(original, handler, method)
            if isinstance(owner, type):
                hook = declarations.file_function(f"{owner.__module__}:{owner.__qualname__}", name)
                value = staticmethod(call) if method == "mapped" else call
                stack.enter_context(attached_to(owner, hook, instead(value)))
            else:
                changed[id(original)] = original, call
        stack.enter_context(references_replaced(list(changed.values())))
        yield


def _call(original: Any, handler: Any, method: str) -> Any:
    if isinstance(original, type) and method == "file_io":
        return _file_io(original, handler)
    return _outermost(original, handler, method)


def _outermost(original: Call, handler: Any, method: str) -> Call:
    """Return `original` redirected; functions that it calls are not redirected again."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "busy", False) or (method == "file_io" and _has_opener(args, kwargs)):
            return original(*args, **kwargs)
        refuse_change(method, (*args, kwargs["mode"]) if "mode" in kwargs and len(args) == 1 else args)
        _inside.busy = True
        args = _positional(args, kwargs)
        try:
            return getattr(handler, method)(original, *args, **kwargs)
        except OSError as error:
            _name_as_given(error, args)
            raise
        finally:
            _inside.busy = False

    return call


def _has_opener(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `open` gets an opener, which calls `os.open` itself."""
    return len(args) > 7 or kwargs.get("opener") is not None


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments, including paths that were passed by keyword."""
    if not args:
        args = tuple(kwargs.pop(name) for name in _FIRST if name in kwargs)
    return (*args, kwargs.pop("dst")) if len(args) == 1 and "dst" in kwargs else args


def _name_as_given(error: OSError, args: tuple[Any, ...]) -> None:
    """Replace the paths in an error, which may be redirected, by those that the script passed."""
    if error.filename is not None and args and isinstance(args[0], (str, bytes, os.PathLike)):
        error.filename = os.fspath(args[0])
        if error.filename2 is not None and len(args) > 1 and isinstance(args[1], (str, bytes, os.PathLike)):
            error.filename2 = os.fspath(args[1])


def _file_io(original: type, handler: Any) -> type:
    """Return a class that opens files through the handler; instance checks treat it as the original."""

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, original)

    class FileIO(original, metaclass=Meta):  # type: ignore[misc]
        def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            if getattr(_inside, "busy", False):
                super().__init__(file, mode, *args, **kwargs)
                return
            refuse_change("file_io", (file, mode))
            _inside.busy = True
            try:
                handler.file_io(super().__init__, file, mode, *args, **kwargs)
                if not isinstance(file, int):
                    self.name = file
            except OSError as error:
                _name_as_given(error, (file,))
                raise
            finally:
                _inside.busy = False

    return FileIO


@contextmanager
def unredirected() -> Iterator[None]:
    """Let the calling thread access files directly."""
    before, _inside.busy = getattr(_inside, "busy", False), True
    try:
        yield
    finally:
        _inside.busy = before


@contextmanager
def redirected_again() -> Iterator[None]:
    """Redirect the functions that a redirected function calls, too."""
    _inside.busy = False
    try:
        yield
    finally:
        _inside.busy = True
