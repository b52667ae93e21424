"""Lets workers write the output that they have buffered before their launcher ends them.

A signal ends a worker at once if its program waits in a collective; the lines in its buffers would be lost. A
thread of each worker waits for the launcher's request, which is the end of a pipe whose write end only the
launcher holds, and answers in shared memory. `threading` does not list this thread, so that a program is the
same with it, and a fork of it is as safe as without: the thread holds no lock while it waits.
"""

import _thread
import gc
import io
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_NONE, _WAITS, _WRITTEN = 0, 1, 2  # states of a worker: it has no thread, its thread waits, or has flushed
_KINDS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
"""Classes whose `flush` runs no code of a program; subclasses are left out."""


class OutputFlush:
    """Launcher's side of the pipe, and the state of each of several workers.

    The workers are forked after this object is made.
    """

    def __init__(self, workers: int) -> None:
        self._states = mmap.mmap(-1, workers)
        self._read, self._write = os.pipe()

    def use_here(self, worker: int) -> None:
        """Start the thread of this process, which is `worker`."""
        os.close(self._write)
        self._states[worker] = _WAITS
        _here[:] = [(self._states, worker)]
        with suppress(RuntimeError):  # the system allows no more threads: the worker goes on without
            _thread.start_new_thread(self._answer, (worker,))

    def _answer(self, worker: int) -> None:
        with suppress(OSError):  # the program has closed the pipe
            os.read(self._read, 1)
            flush_buffers()
        self._states[worker] = _WRITTEN

    def request(self) -> None:
        """Ask all workers to write what they have buffered."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def is_awaited(self, worker: int) -> bool:
        """Return whether a worker, if it still runs, is about to write after a request."""
        return self._states[worker] == _WAITS

    def close(self) -> None:
        """Close the pipe."""
        self.request()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1


_here: list[tuple[mmap.mmap, int]] = []
"""The states of the workers and the number of this one, if a launcher has started it."""


def withdraw() -> None:
    """Let the launcher await no answer of this worker, because another program is about to replace it."""
    for states, worker in _here:
        states[worker] = _NONE


def flush_buffers() -> None:
    """Write what the standard streams and the open files of this process have buffered.

    No code of the program runs: streams of its own classes are left out, and no garbage is collected, whose
    finalizers could be the program's.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for stream in _streams():
            with suppress(OSError, ValueError):  # closed, or nothing can be written there
                stream.flush()
    finally:
        if was_enabled:
            gc.enable()


def _streams() -> Iterator[Any]:
    """Yield the standard streams, and then the streams that write to a regular file."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if type(stream) in _KINDS:
            yield stream
    for kind in _KINDS:  # a text's buffer is flushed after the text
        yield from (one for one in gc.get_objects() if type(one) is kind and _is_regular(one))


def _is_regular(stream: Any) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return False
