"""Ends a process in the middle of a script, without losing what the script has written so far."""

import atexit
import gc
import io
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

from samestep.base.console import log

LIMIT_S = 10.0
"""Seconds for the script's `atexit` functions, which may wait for something that no longer comes."""


def exit_process(exit_code: int = 0, *, limit_s: float = LIMIT_S) -> NoReturn:
    """End this process, whatever exceptions the script catches.

    Open files are flushed and `atexit` functions are called; other threads are not waited for.

    Args:
        exit_code: of the process.
        limit_s: seconds after which the process ends even if an `atexit` function has not returned.
    """
    _flush(_file_streams())
    timer = threading.Timer(limit_s, _exit_late, [exit_code, limit_s])
    timer.daemon = True
    timer.start()
    with suppress(BaseException):  # loggers write their last records, temporary files are removed
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public spelling
    _flush(_file_streams())
    _flush([sys.stdout, sys.stderr])
    _flush(_streams())  # last, because a pipe without a reader blocks
    os._exit(exit_code)


def _exit_late(exit_code: int, limit_s: float) -> NoReturn:
    with suppress(Exception):
        log(f"the script's atexit functions have not returned after {limit_s:.4g} s, and are abandoned.")
    os._exit(exit_code)


def _flush(streams: Any) -> None:
    for stream in streams:
        with suppress(Exception):  # a class of the script may fail here
            stream.flush()


def _file_streams() -> Iterator[io.IOBase]:
    """Yield the streams that write to a regular file."""
    for stream in _streams():
        with suppress(Exception):
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                yield stream


def _streams() -> list[io.IOBase]:
    """Return all buffered streams, except those that the launcher opened before it forked this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), io.TextIOBase | io.BufferedIOBase)]
