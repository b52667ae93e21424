"""Appends lines to files; lines that cannot be written stay in memory and are tried again."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from samestep.base.units import counted

MOST_KEPT = 16 << 20
"""Maximum bytes kept for one file while it cannot be written; further lines are lost."""


@dataclass(slots=True)
class _Backlog:
    """The lines of one file that are not written yet."""

    text: bytearray = field(default_factory=bytearray)
    lines: int = 0
    lost: int = 0
    reason: str = ""


class LineFiles:
    """Files of whole lines; a full or read-only disk does not end the run.

    Args:
        report: receives one line when a file cannot be written, one when it can be written again, and one
            about lines that are never written.
        most: maximum bytes kept for each file while it cannot be written.
    """

    def __init__(self, report: Callable[[str], None], *, most: int = MOST_KEPT) -> None:
        self._report, self._most = report, most
        self._backlogs: dict[Path, _Backlog] = {}

    def append(self, path: Path, lines: Iterable[str]) -> None:
        """Append lines to a file, after its unwritten ones."""
        rest = self._backlogs.setdefault(path, _Backlog())
        for line in lines:
            data = line.encode("utf-8")
            if len(rest.text) + len(data) > self._most:
                rest.lost += 1
            else:
                rest.text += data
                rest.lines += 1
        self._write(path, rest)

    def close(self) -> None:
        """Try to write the remaining lines once more, and report those that are not written."""
        for path, rest in self._backlogs.items():
            self._write(path, rest)
            if rest.lines or rest.lost:
                missing = counted(rest.lines + rest.lost, "line")
                self._report(f"never written: {missing} of {path} ({rest.reason})")
        self._backlogs.clear()

    def _write(self, path: Path, rest: _Backlog) -> None:
        if not rest.text:
            return
        try:
            _append(path, rest.text)
        except OSError as error:
            if not rest.reason:
                self._report(
                    f"cannot write to {path}: {error.strerror}. The run continues; the lines stay in memory "
                    "and are tried again"
                )
            rest.reason = error.strerror or type(error).__name__
            return
        rest.text.clear()
        rest.lines = 0
        if rest.reason and not rest.lost:
            self._report(f"{path} can be written again and is complete")
            rest.reason = ""


def _append(path: Path, data: bytes | bytearray) -> None:
    """Write all of `data` to the end of a file, or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before = os.fstat(file).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(file, view) :]
        except OSError:
            view.release()
            with suppress(OSError):
                os.ftruncate(file, before)
            raise
        view.release()
    finally:
        os.close(file)
