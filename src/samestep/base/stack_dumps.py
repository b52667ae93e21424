"""Stores the Python stack of each worker that a fatal signal kills, where its launcher can read it.

`faulthandler` writes the stacks from the signal's handler, to a file in memory that was created before the
worker was forked.
"""

import faulthandler
import os
import re
import tempfile
import threading
from dataclasses import dataclass

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAIN = "main thread "
_BYTES = 1 << 18
"""Maximum length of a dump that is read."""


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
    """Return the frames of the main thread from what `StackDumps.use_here` has written."""
    first, *lines = text.splitlines() or [""]
    main, frames, is_main = int(first.removeprefix(_MAIN) or "0", 16), [], False
    for line in lines:
        if thread := _THREAD.match(line):
            is_main = int(thread[1], 16) == main
        elif is_main and (frame := _FRAME.match(line)):
            frames.append(Frame(frame[1], int(frame[2]), frame[3]))
    return frames


def _memory_file() -> int:
    try:
        return os.memfd_create("samestep-stacks")
    except (AttributeError, OSError):  # not Linux, or forbidden in this container
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
