"""The end of a process in the middle of a script, which loses nothing that the script has written so far."""

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

from samestep.cli.running import tell

LIMIT_S = 10.0
"""For what a script has registered for its end: it may wait for what does not come any more."""


def leave(exit_code: int = 0, *, limit_s: float = LIMIT_S) -> NoReturn:
    """End this process, whatever the script would catch.

    Open files are flushed, and what is registered with `atexit` is called. Other threads are cut off.

    Args:
        exit_code: of the process.
        limit_s: after which the process ends, whatever of the calls has not.
    """
    _flush(_of_files())
    late = threading.Timer(limit_s, _cut_off, [exit_code, limit_s])
    late.daemon = True
    late.start()
    with suppress(BaseException):  # loggers lose nothing; what the script has made for its time is removed
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public spelling
    _flush(_of_files())
    _flush([sys.stdout, sys.stderr])
    _flush(_open())  # a pipe may have nobody who reads it
    os._exit(exit_code)


def _cut_off(exit_code: int, limit_s: float) -> NoReturn:
    with suppress(Exception):
        tell(f"what the script does at its end (atexit) has not ended after {limit_s:.4g} s, and is cut off.")
    os._exit(exit_code)


def _flush(streams: Any) -> None:
    for stream in streams:
        with suppress(Exception):  # the script's own, and maybe no longer whole
            stream.flush()


def _of_files() -> Iterator[io.IOBase]:
    """Yield the streams that write to a file."""
    for stream in _open():
        with suppress(Exception):
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                yield stream


def _open() -> list[io.IOBase]:
    """Return all streams that have a buffer, but for what the launcher opened before this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), io.TextIOBase | io.BufferedIOBase)]
