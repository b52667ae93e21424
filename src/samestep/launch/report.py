"""A worker's last word to its launcher, through a pipe: length first, then the pickled report."""

import os
import pickle
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
    """

    ending: Ending
    result: Any = None


def send(word: int, report: Report) -> None:
    """Tell the launcher how this worker's program ended; `word` is closed."""
    payload = memoryview(_pickled(report))
    message = len(payload).to_bytes(_LENGTH_BYTES, "big") + payload
    view = memoryview(message)
    while view:
        view = view[os.write(word, view) :]
    os.close(word)


def received(data: bytes | bytearray) -> Report | None:
    """Return the report in what has arrived, or None while it is not whole."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    if len(data) < _LENGTH_BYTES or len(data) < _LENGTH_BYTES + length:
        return None
    report: Report = pickle.loads(bytes(data[_LENGTH_BYTES:]))  # noqa: S301 - our own child's
    return report


def _pickled(report: Report) -> bytes:
    try:
        return pickle.dumps(report)
    except Exception as error:  # noqa: BLE001 - whatever pickling user data raises is told instead
        what = f"a worker's result of type {type(report.result).__name__} cannot be pickled: {error}\n"
        return pickle.dumps(
            Report(ending=Ending(exit_code=1, error=type(error).__name__, message=what, traceback=what))
        )
