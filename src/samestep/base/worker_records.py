"""Stores the last step and the stack of each worker where its launcher can read them, however it ends.

`faulthandler` writes the stacks from the signal's handler, to a file in memory that was created before the
worker was forked.
"""

import faulthandler
import gc
import mmap
import os
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, repeat, takewhile
from types import FrameType
from typing import Any

_SLOT = struct.Struct("<q")


class LastSteps:
    """The last steps of several workers, in memory that the processes forked from this one share.

    The workers are forked after this object is made.
    """

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, workers * _SLOT.size)
        self._workers = workers

    def use_here(self, worker: int) -> None:
        """Make `record_step` write to the slot of `worker`, which this process is."""
        _here.memory, _here.offset = self._memory, worker * _SLOT.size

    def latest(self) -> int | None:
        """Return the largest step that any worker has recorded; None where none has recorded any."""
        slots = (_SLOT.unpack_from(self._memory, k * _SLOT.size)[0] for k in range(self._workers))
        furthest = max(slots)
        return furthest - 1 if furthest else None


@dataclass
class _Here:
    """The slot that this process writes its step to, if a launcher reads it."""

    memory: mmap.mmap | None = None
    offset: int = 0


_here = _Here()


def record_step(step: int) -> None:
    """Record the number of steps that the training has finished, restarts included."""
    if _here.memory is not None:
        _SLOT.pack_into(_here.memory, _here.offset, step + 1)


_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)|Stack \(")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAIN = "main thread "
_BYTES = 1 << 18  # maximum length of a dump that is read


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a Python stack."""

    file: str
    line: int
    function: str


class StackDumps:
    """Files for the stacks of several workers."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    @property
    def files(self) -> list[int]:
        """The descriptors of all files."""
        return list(self._files.values())

    def add(self, worker: int) -> None:
        """Create the file of a worker, before it is forked."""
        self._files[worker] = _memory_file()

    def use_here(self, worker: int) -> None:
        """Write the stacks of this process, which is `worker`, when a fatal signal arrives.

        Processes that the worker forks do not write there: they can die while the worker lives.
        """
        file = self._files[worker]
        os.write(file, f"{_MAIN}{threading.main_thread().ident or 0:#x}\n".encode())
        faulthandler.enable(file, all_threads=True)
        os.register_at_fork(after_in_child=faulthandler.disable)

    def main_frames(self, worker: int) -> list[Frame]:
        """Return the frames of a worker's main thread at its death, innermost first; empty without a dump."""
        text = os.pread(self._files[worker], _BYTES, 0) if worker in self._files else b""
        return parse_main_frames(text.decode(errors="replace"))

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            os.close(file)
        self._files = {}


def parse_main_frames(text: str) -> list[Frame]:
    """Return the frames of the main thread, of the last dump, from what `StackDumps.use_here` has written.

    `text` begins with the line that names the thread. A dump of `faulthandler` has all threads, or the main
    thread alone, without its name.
    """
    first, *lines = text.splitlines() or [""]
    main, is_main = int(first.removeprefix(_MAIN) or "0", 16), False
    frames: list[Frame] = []
    for line in lines:
        if thread := _THREAD.match(line):
            is_main = thread[1] is None or int(thread[1], 16) == main
            frames = [] if is_main else frames
        elif is_main and (frame := _FRAME.match(line)):
            frames.append(Frame(frame[1], int(frame[2]), frame[3]))
    return frames


def _memory_file() -> int:
    try:
        return os.memfd_create("samestep-stacks")
    except (AttributeError, OSError):  # not Linux, or forbidden in this container
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def frames_of(thread: int | None) -> list[FrameType]:
    """Return the frames of a thread, innermost first; empty if the thread has ended.

    CPython 3.11 may collect garbage while it makes the object of a frame. A finalizer can then let the other
    thread leave that frame, whose memory is used all the same: the process crashes or hangs. No garbage is
    collected here therefore.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - the one way to see other threads
        return list(callers(frame))
    finally:
        if was_enabled:
            gc.enable()


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Return a frame and its callers.

    No bytecode runs between two of them, so those of another thread do not change meanwhile.
    """
    steps: Iterable[Any] = chain((frame,), repeat("f_back"))
    return takewhile(bool, accumulate(steps, getattr))
