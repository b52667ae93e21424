"""Refuses or suppresses effects outside of the process while a call is computed for a comparison.

A forward may write a file, start a program or send a message. Computed once more, or for a slice, it would do
so once more. Python announces such operations, also those of its modules in C, to audit hooks, which can
refuse them. Writes by libraries in C that do not announce them are not seen. A helper refuses all of them.
Those of a library that is imported are let through, such as the temporary folder of wandb: a process does
that once, as it does in each worker of a data loader.

What a forward prints, logs and warns is discarded.
"""

import logging
import os
import shutil
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from samestep.autopilot.files.overlay_lookup import is_device
from samestep.autopilot.script.call_account import is_users_code
from samestep.base.units import one_line
from samestep.hooks import declarations
from samestep.hooks.registry import attached, attached_all, wrapping
from samestep.hooks.thread_values import ThreadValue

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OPEN, _TEMPORARY = "open", "tempfile.mkdtemp"
_EVENTS = frozenset(
    (
        *(_OPEN, _TEMPORARY),
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "sqlite3.connect"),
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"),
        *("os.kill", "socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"),
    )
)
_COMPILER = f"{Path(torch.__file__).parent}{os.sep}_inductor{os.sep}"
_IMPORT = "<frozen importlib._bootstrap>"
_is_comparing = ThreadValue(default=False)
_are_watched: list[bool] = []
"""Whether this process has the hook; and whether it refuses all effects, as a helper does."""
_temporary_folders: list[str] = []
"""Those that libraries have made in a helper, which writes no files and has no use for them."""


class WritesFileError(Exception):
    """A module has an effect outside of its process when it is called, such as a file that it writes."""


def changing_no_files() -> AbstractContextManager[None]:
    """Raise `WritesFileError` where the calling thread is about to have an effect outside."""
    return _is_comparing.bound(value=True)


def watch_effects(*, refuses_all: bool = False) -> None:
    """Let this process announce effects from now on, or refuse them all; a hook of Python's stays."""
    if not _are_watched:
        sys.addaudithook(_audit)
    _are_watched[:] = [refuses_all]


def _announced(original: Callable[..., Any], content: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    """Announce a file that C++ or Rust is about to write, as Python does for its own."""
    if isinstance(file, (str, os.PathLike)):
        sys.audit(_OPEN, os.fspath(file), "wb", _WRITE_FLAGS)
    return original(content, file, *args, **kwargs)


def announced_files() -> AbstractContextManager[None]:
    """Let `torch.save` and safetensors announce the files that they write in the block."""
    hooks = declarations.FILE_OF_ARCHIVE, declarations.FILE_OF_TENSORS
    return attached_all(dict.fromkeys(hooks, wrapping(_announced)))


def remove_temporary_folders() -> None:
    """Remove those that libraries have made in this helper."""
    if not _temporary_folders:
        return
    before = [*_are_watched]
    watch_effects()
    while _temporary_folders:
        shutil.rmtree(_temporary_folders.pop(), ignore_errors=True)
    _are_watched[:] = before


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS:  # first: Python announces each `id(...)`, too
        return
    if event == _TEMPORARY:
        if _are_watched[0]:
            _temporary_folders.append(os.fsdecode(args[0]))
        return
    if event == _OPEN and not _writes(*args):
        return
    if (_are_watched[0] or _is_comparing.get()) and not _is_of_library():
        raise WritesFileError(f"{event} {one_line(str(args))}")


def _is_of_library() -> bool:
    """Return whether this is an effect of an import of a library, or of `torch.compile`.

    That writes to its cache, and starts a compiler.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - copies no stack
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _IMPORT or file.startswith(_COMPILER):
            return True
        if is_users_code(frame.f_code, frame.f_globals):
            return False
        frame = frame.f_back
    return False


def _writes(path: Any, mode: Any, flags: int) -> bool:
    """Return whether `open` or `os.open` is about to write to a file that others can see."""
    if isinstance(path, int) or (flags & os.O_TMPFILE) == os.O_TMPFILE:
        return False
    if not (set(mode) & set("wax+") if isinstance(mode, str) else flags & _WRITE_FLAGS):
        return False
    text = os.fsdecode(path)
    return not is_device(text) and not text.startswith("/proc/")


@dataclass(eq=False, slots=True)
class Printed:
    """Whether a block of `quiet` has printed or logged."""

    any: bool = False
    shows_once: bool = False
    """Whether messages that are logged once are shown, as this is the script's call."""


_printed: ThreadValue[Printed | None] = ThreadValue(None)


class _QuietStream:
    """A stream that discards what a block of `quiet` prints; other threads use the original stream."""

    def __init__(self, stream: Any) -> None:
        self.original = stream

    def write(self, text: str) -> int:
        """Discard a text, and record that there was one."""
        printed = _printed.get()
        if printed is None:
            written: int = self.original.write(text)
            return written
        printed.any = True
        return len(text)

    def flush(self) -> None:
        """Flush the original stream for other threads: no text of the block is kept."""
        if _printed.get() is None:
            self.original.flush()

    def __getattr__(self, name: str) -> Any:
        if _printed.get() is None:
            return getattr(self.original, name)
        raise AttributeError(name)


_streams: deque[_QuietStream] = deque(maxlen=16)
"""The last streams. Python's `print` holds no reference to the stream to which it writes, so that one that
another thread prints to must not be freed when the block ends; 16 threads print at a time, as a guess."""


def _quiet_stream(stream: Any) -> Any:
    if isinstance(stream, _QuietStream):
        return stream
    quiet_stream = next((known for known in [*_streams] if known.original is stream), None)
    if quiet_stream is None:
        quiet_stream = _QuietStream(stream)
        _streams.append(quiet_stream)
    return quiet_stream


@contextmanager
def quiet() -> Iterator[Printed]:
    """Suppress what the calling thread prints, logs and warns, also in a backward on a device.

    Yields:
        whether it has printed or logged.
    """
    printed = Printed()
    stdout, stderr = map(_quiet_stream, (sys.stdout, sys.stderr))
    with (
        _printed.bound(printed),
        attached(declarations.LOGGED, wrapping(_log)),
        _logged_once(),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        ignored_warnings(),
    ):
        yield printed


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore warnings in the block, and leave to the script's call those that are shown once.

    `warnings.catch_warnings` would let Python show each one again that it has shown before.
    """
    filters, always = warnings.filters, torch.is_warn_always_enabled()
    before = [*filters]
    filters.insert(0, ("ignore", None, Warning, None, 0))  # type: ignore[attr-defined]
    torch.set_warn_always(True)  # torch counts no warning as shown then
    try:
        yield
    finally:
        torch.set_warn_always(always)
        filters[:] = before  # type: ignore[index]


@contextmanager
def watched_logging() -> Iterator[None]:
    """Let `without_stdout` see records of loggers, too."""
    with attached(declarations.LOGGED, wrapping(_log)):
        yield


@contextmanager
def without_stdout() -> Iterator[Printed]:
    """Suppress what the calling thread prints to stdout and logs; several times faster than `quiet`.

    Warnings, and what a library logs once, are printed as they are.

    Yields:
        whether it has printed or logged.
    """
    printed = Printed(shows_once=True)
    stdout = redirect_stdout(_quiet_stream(sys.stdout))
    with _printed.bound(printed), _logged_once(), stdout:
        yield printed


def _log(original: Callable[..., None], logger: logging.Logger, record: logging.LogRecord) -> None:
    printed = _printed.get()
    if printed is None:
        original(logger, record)
    elif not record.name.startswith("torch."):  # a compiler's records hold nothing of the samples
        printed.any = True


def _log_once(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Log a message that is logged once: by the script's call, since a comparison would use it up."""
    printed = _printed.get()
    if printed is None or printed.shows_once:
        with _printed.bound(None):
            original(*args, **kwargs)


_LOGGED_ONCE = dict.fromkeys(declarations.LOGGED_ONCE, wrapping(_log_once))


def _logged_once() -> AbstractContextManager[None]:
    """Replace what logs a message once; a library may add it to loggers between two calls, or none does."""
    present = {hook: make for hook, make in _LOGGED_ONCE.items() if hasattr(logging.Logger, hook.attribute)}
    return attached_all(present) if present else nullcontext()
