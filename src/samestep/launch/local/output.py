"""Routes the output of workers to the console, files, or both.

A stream for the console only, or for a file only, is passed to the worker directly. Only a stream for both
passes through the launcher, in whole lines.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from samestep.base.console import discard_output, write_stderr
from samestep.base.errors import UsageError
from samestep.launch.job import STDERR, STDOUT, Logs

_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_CHUNK_BYTES = 1 << 16  # the capacity of a pipe on Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Targets of one stream of one worker; without file and prefix, the stream is not changed."""

    console: bool = True
    file: Path | None = None
    prefix: str = ""

    @property
    def passes_through(self) -> bool:
        """Whether the launcher must read the stream itself."""
        return self.console and (self.file is not None or bool(self.prefix))


def log_folder(logs: Logs, run_id: str, *, restarts: int, local_rank: int) -> Path | None:
    """Return the folder of one worker's log files in one round, or None without ``--log-dir``."""
    if logs.folder is None:
        return None
    return logs.folder / run_id / f"attempt_{restarts}" / str(local_rank)


def route(logs: Logs, folder: Path | None, *, stream: int, rank: int, local_rank: int) -> Route:
    """Return the route of `stream` of one worker; pure.

    A log folder alone does not change the console and gets a copy of everything.
    """
    file = folder / f"{_NAMES[stream]}.log" if folder is not None else None
    if logs.redirects.of(local_rank) & stream:
        return Route(console=False, file=file)
    if logs.tee.of(local_rank) & stream:
        return Route(file=file, prefix=f"[rank{rank}]: ")
    chosen = not (logs.redirects.is_empty and logs.tee.is_empty)
    return Route() if chosen else Route(file=file)


def check_writable(logs: Logs) -> None:
    """Create the log folder, so that a wrong one is refused before any worker starts."""
    if logs.folder is None:
        return
    try:
        logs.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--log-dir {logs.folder} cannot be made: {error.strerror}.") from None
    if not os.access(logs.folder, os.W_OK | os.X_OK):
        raise UsageError(f"--log-dir {logs.folder} cannot be written to. Give a folder that can.")


@dataclass(slots=True)
class Stream:
    """Launcher's side of one stream of one worker; `open` must be called first."""

    number: int  # 1 for stdout, 2 for stderr
    target: Route  # route of the stream
    read: int | None = None  # the end of the pipe the launcher reads, if the stream passes through it
    write: int | None = None  # the descriptor that replaces the worker's stream, if any
    _file: IO[bytes] | None = None
    _rest: bytearray = field(default_factory=bytearray)

    def open(self) -> None:
        """Open the file, and the pipe if one is needed."""
        if self.target.file is not None:
            self.target.file.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.target.file.open("ab", buffering=0)
        if self.target.passes_through:
            self.read, self.write = os.pipe()
            os.set_blocking(self.read, False)
        elif self._file is not None:
            self.write = self._file.fileno()

    @property
    def files(self) -> set[int]:
        """Open descriptors of this stream."""
        file = None if self._file is None or self._file.closed else self._file.fileno()
        return {fd for fd in (self.read, self.write, file) if fd is not None}

    def attach(self) -> None:
        """Replace the worker's own stream by this one; called in the worker."""
        if self.write is not None:
            os.dup2(self.write, self.number)

    def after_fork(self) -> None:
        """Close the worker's end of the pipe; called in the launcher."""
        if self.read is not None and self.write is not None:
            os.close(self.write)
        self.write = None

    def pump(self) -> int | None:
        """Forward the available output; return its length: 0 at the stream's end, None if there is none."""
        if self.read is None:
            return 0
        try:
            chunk = os.read(self.read, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._record(chunk)
        # A progress bar ends in a carriage return and would never become a line.
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            self._show(bytes(self._rest) + chunk[:end])
            self._rest.clear()
        self._rest += chunk[end:]
        return len(chunk)

    def append(self, text: str) -> None:
        """Write a text of the launcher about this worker into the file."""
        self._record(text.encode(errors="replace"))

    def _record(self, data: bytes) -> None:
        """Write into the file; the workers go on if that fails, for a full disk must not end a training."""
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            write_stderr(
                f"samestep: warning: {self.target.file} lacks output from here on: {error.strerror}.\n"
            )
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Forward the remaining output and close everything.

        An orphaned process of the worker may hold the other end open; its later output is not forwarded.
        """
        self.after_fork()
        if self.read is not None:
            while self.pump():
                pass
            # The next line on the console begins with another rank's prefix.
            end = b"\n" if self._rest and self.target.prefix else b""
            self._show(bytes(self._rest) + end)
            self._rest.clear()
            os.close(self.read)
            self.read = None
        if self._file is not None:
            self._file.close()

    def _show(self, lines: bytes) -> None:
        if not lines:
            return
        prefix = self.target.prefix.encode()
        if prefix:
            lines = b"".join(prefix + line for line in lines.splitlines(keepends=True))
        console = sys.stdout if self.number == STDOUT else sys.stderr
        if console is None:  # the launcher was started with the stream closed
            return
        try:
            console.buffer.write(lines)
            console.buffer.flush()
        except OSError as error:
            discard_output(console)
            if self._file is None:  # the script's own write would fail
                raise
            write_stderr(
                f"samestep: warning: the console lacks output from here on: {error.strerror}. "
                f"{self.target.file} has it.\n"
            )


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
        yield from (stream for stream in gc.get_objects() if type(stream) is kind and is_regular(stream))


def is_regular(stream: Any) -> bool:
    """Return whether a stream reads or writes a regular file; a class of the program may fail here."""
    with suppress(Exception):
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return False
