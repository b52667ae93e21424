"""Sends a worker's report to its launcher through a pipe: first the length, then the pickled report."""

import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from samestep.launch.local.hosting import Ending
from samestep.launch.local.orphans import file_identity

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of a worker whose program has ended, sent before the worker exits."""

    ending: Ending  # end of the program
    result: Any = None  # further result of the worker
    final: bool = True  # otherwise it counts only if the worker sends no later one


@dataclass(frozen=True, slots=True)
class ReportPipe:
    """Worker's end of the report pipe, usable only by the worker itself and while it is still that pipe.

    A process that the program forks has a copy and does not report for the worker. A program may close
    descriptors that it has not opened, and open its own under the same number.
    """

    fd: int
    owner: int
    pipe: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> "ReportPipe":
        """Return the pipe with descriptor `fd`, owned by this process."""
        return cls(fd, os.getpid(), file_identity(fd))

    def send_provisional(self, ending: Ending) -> None:
        """Send the program's end, for the case that this worker sends no later report."""
        self._write(Report(ending=ending, final=False))

    def send(self, report: Report) -> None:
        """Send the report to the launcher; print its traceback on stderr if that fails."""
        if self._write(report):
            os.close(self.fd)
            return
        with suppress(Exception):  # stderr may be closed as well
            sys.stderr.write(report.ending.traceback)
            sys.stderr.flush()

    def _write(self, report: Report) -> bool:
        try:
            if os.getpid() != self.owner or file_identity(self.fd) != self.pipe:
                return False
            payload = _pickled(report)
            view = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            return False
        return True


def received(data: bytearray) -> Report | None:
    """Remove the first complete report from the received bytes and return it; None if there is none."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    if len(data) < max(end, _LENGTH_BYTES + 1):
        return None
    ending, final, kind, result = pickle.loads(data[_LENGTH_BYTES:end])  # noqa: S301 - our own child's
    del data[:end]
    try:
        return Report(ending=ending, final=final, result=pickle.loads(result))  # noqa: S301
    except Exception as error:  # noqa: BLE001 - any error of unpickling user data is reported instead
        return _untransportable(f"a worker's result of type {kind} cannot be unpickled", error)


def _pickled(report: Report) -> bytes:
    kind = type(report.result).__name__
    try:
        result = pickle.dumps(report.result)
    except Exception as error:  # noqa: BLE001 - any error of pickling user data is reported instead
        report = _untransportable(f"a worker's result of type {kind} cannot be pickled", error)
        result = pickle.dumps(None)
    return pickle.dumps((report.ending, report.final, kind, result))


def _untransportable(what: str, error: Exception) -> Report:
    text = f"{what}: {type(error).__name__}: {error}\n"
    return Report(ending=Ending(exit_code=1, error=type(error).__name__, message=text, traceback=text))
