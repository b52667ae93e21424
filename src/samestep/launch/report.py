"""A worker's words to its launcher, through a pipe: length first, then the pickled report."""

import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from samestep.launch.hosting import Ending

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker says when its program has ended, before it leaves.

    Args:
        ending: how the program ended.
        result: anything else it hands back.
        final: whether this is the last word; otherwise it holds only if the worker ends without another.
    """

    ending: Ending
    result: Any = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Word:
    """The worker's end of the pipe, as long as it is that, and for the worker alone.

    A process that the program forks has a copy and does not speak for the worker. A program may close files
    that it has not opened, and open its own under the same number.
    """

    fd: int
    owner: int
    pipe: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> "Word":
        """Take `fd` for this process's own."""
        return cls(fd, os.getpid(), _identity(fd))

    def foretell(self, ending: Ending) -> None:
        """Say how the program has ended, should this worker end without another word."""
        self._say(Report(ending=ending, final=False))

    def send(self, report: Report) -> None:
        """Tell the launcher how the program ended; what it cannot be told goes to stderr instead."""
        if self._say(report):
            os.close(self.fd)
            return
        with suppress(Exception):  # stderr may be closed as well
            sys.stderr.write(report.ending.traceback)
            sys.stderr.flush()

    def _say(self, report: Report) -> bool:
        try:
            if os.getpid() != self.owner or _identity(self.fd) != self.pipe:
                return False
            payload = _pickled(report)
            view = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            return False
        return True


def received(data: bytearray) -> Report | None:
    """Take the first whole report out of what has arrived; None while there is none."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    if len(data) < max(end, _LENGTH_BYTES + 1):
        return None
    ending, final, kind, result = pickle.loads(data[_LENGTH_BYTES:end])  # noqa: S301 - our own child's
    del data[:end]
    try:
        return Report(ending=ending, final=final, result=pickle.loads(result))  # noqa: S301
    except Exception as error:  # noqa: BLE001 - whatever unpickling user data raises is told instead
        return _untransportable(f"a worker's result of type {kind} cannot be unpickled", error)


def _pickled(report: Report) -> bytes:
    kind = type(report.result).__name__
    try:
        result = pickle.dumps(report.result)
    except Exception as error:  # noqa: BLE001 - whatever pickling user data raises is told instead
        report = _untransportable(f"a worker's result of type {kind} cannot be pickled", error)
        result = pickle.dumps(None)
    return pickle.dumps((report.ending, report.final, kind, result))


def _untransportable(what: str, error: Exception) -> Report:
    said = f"{what}: {type(error).__name__}: {error}\n"
    return Report(ending=Ending(exit_code=1, error=type(error).__name__, message=said, traceback=said))


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
