"""Refuses effects outside of the process while a call is computed for a comparison, or by a helper.

A forward may write a file, start a program or send a message. Computed once more, or for a slice, it would do
so once more. Python announces such operations, also those of its modules in C, to audit hooks, which can
refuse them. Writes by libraries in C that do not announce them are not seen.
"""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from samestep.autopilot.files.overlay_lookup import is_device
from samestep.autopilot.script.call_account import is_user_code
from samestep.hooks.thread_values import ThreadValue

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = frozenset(
    (
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "sqlite3.connect"),
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"),
        *("os.kill", "socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"),
    )
)
_COMPILER = f"{Path(torch.__file__).parent}{os.sep}_inductor{os.sep}"
_BYTECODE = f"{os.sep}__pycache__"
_is_comparing = ThreadValue(default=False)
_are_watched: list[bool] = []
"""Whether this process has the hook; and whether it refuses all effects, as a helper does."""


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


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        if not _writes(*args):
            return
    elif event not in _EVENTS:
        return
    if any(isinstance(one, str) and _BYTECODE in one for one in args):  # of a module that the call imports
        return
    if (_are_watched[0] or _is_comparing.get()) and not _is_compiling():
        raise WritesFileError(f"{event} {str(args)[:200]}")


def _is_compiling() -> bool:
    """Return whether `torch.compile` has this effect: it writes to its cache, and starts a compiler."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - copies no stack
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_COMPILER):
            return True
        if is_user_code(file):
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
