"""Files of lines that a run appends to; lines that cannot be written are kept in memory and tried again."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from samestep.base.units import counted

MOST_KEPT = 16 << 20
"""Bytes of one file that are kept while it cannot be written; lines beyond them are lost."""


@dataclass(slots=True)
class _Rest:
    """What of one file is not written yet.

    Args:
        text: the lines.
        lines: how many there are.
        lost: how many more there were no room for.
        reason: why they could not be written.
    """

    text: bytearray = field(default_factory=bytearray)
    lines: int = 0
    lost: int = 0
    reason: str = ""


class LineFiles:
    """Appends whole lines to files; a full or read-only disk ends no run.

    Args:
        tell: receives one line when a file cannot be written, one when it can be again, and one about what is
            never written.
        most: bytes of each file that are kept while it cannot be written.
    """

    def __init__(self, tell: Callable[[str], None], *, most: int = MOST_KEPT) -> None:
        self._tell, self._most = tell, most
        self._rests: dict[Path, _Rest] = {}

    def append(self, path: Path, lines: Iterable[str]) -> None:
        """Append lines to a file, after those of it that are still to be written."""
        rest = self._rests.setdefault(path, _Rest())
        for line in lines:
            data = line.encode("utf-8")
            if len(rest.text) + len(data) > self._most:
                rest.lost += 1
            else:
                rest.text += data
                rest.lines += 1
        self._write(path, rest)

    def close(self) -> None:
        """Try a last time, and report what is not written."""
        for path, rest in self._rests.items():
            self._write(path, rest)
            if rest.lines or rest.lost:
                missing = counted(rest.lines + rest.lost, "line")
                self._tell(f"never written: {missing} of {path} ({rest.reason})")
        self._rests.clear()

    def _write(self, path: Path, rest: _Rest) -> None:
        if not rest.text:
            return
        try:
            _append(path, rest.text)
        except OSError as error:
            if not rest.reason:
                self._tell(
                    f"cannot write to {path}: {error.strerror}. The run goes on; the lines are kept in "
                    "memory and tried again"
                )
            rest.reason = error.strerror or type(error).__name__
            return
        rest.text.clear()
        rest.lines = 0
        if rest.reason and not rest.lost:
            self._tell(f"{path} can be written to again and is complete")
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
