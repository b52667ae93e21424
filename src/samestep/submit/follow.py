"""Follows a job to its end: its state in words, and its log as it grows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

_LOG_S = 0.3
"""Between two looks at the log."""

_FIRST_S, _GROWTH = 0.5, 1.3
_LONGEST_WAITING_S, _LONGEST_S = 15.0, 5.0
"""Between two questions to the scheduler: it has many users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a job now.

    Args:
        words: its state.
        log: the file that holds its output, if there is one.
        waits: whether it has not started.
        exit_code: how it ended; None while it has not.
        cut_off: whether something else than its own script has ended it.
    """

    words: str
    log: Path | None = None
    waits: bool = False
    exit_code: int | None = None
    cut_off: bool = False


class Followed(Protocol):
    """A job that can be asked for its state."""

    name: str
    stop: str
    """The command that ends it."""

    def look(self) -> Seen:
        """Return what is known of it now."""


class Log:
    """A log that is read as it grows.

    Args:
        show: takes what has come.
    """

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._read = 0

    def read(self, path: Path | None) -> None:
        """Show what has come since the last time."""
        try:
            if path is None or not (size := path.stat().st_size) or size == self._read:
                return
            if size < self._read:  # written anew
                self._read = 0
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:  # not there yet
            return
        self._read += len(new)
        self._show(new)


def follow(
    job: Followed,
    *,
    tell: Callable[[str], None],
    show: Callable[[bytes], None],
    pause: Callable[[float], None] = sleep,
    now: Callable[[], float] = monotonic,
) -> int:
    """Follow a job until it has ended; return its exit code.

    Args:
        job: to follow.
        tell: takes each change of its state, as a sentence.
        show: takes what it prints.
        pause: waits for seconds.
        now: tells the time in seconds.
    """
    log, said, every, asked = Log(show), "", _FIRST_S, float("-inf")
    seen = Seen(words="")
    while True:
        if now() - asked >= every:
            seen, asked = job.look(), now()
            if seen.exit_code is not None:
                log.read(seen.log)
            if seen.words != said:
                tell(f"{job.name} {seen.words}.")
                said, every = seen.words, _FIRST_S
            every = min(every * _GROWTH, _LONGEST_WAITING_S if seen.waits else _LONGEST_S)
            if seen.exit_code is not None:
                return seen.exit_code
        log.read(seen.log)
        pause(_LOG_S)
