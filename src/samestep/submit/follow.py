"""Follows a job to its end: prints each change of its state, its times, and its log as it grows."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from samestep.base.units import seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The present state of a job."""

    words: str  # the state in words
    log: Path | None = None  # the file with its output, if there is one
    waits: bool = False  # whether it has not started
    exit_code: int | None = None  # its exit code; None while it has not ended
    cut_off: bool = False  # whether it was ended from outside, and not by its own script
    is_known: bool = True  # whether the scheduler has answered
    elapsed_s: float | None = None  # seconds that it has run, if the scheduler reports them
    limit_s: float | None = None  # its time limit in seconds; None for none
    expected_start: str = ""  # when the scheduler expects it to start; empty if it does not


_EPOCH = re.compile(rb"^epoch +(\d+)/(\d+) ", re.MULTILINE)
"""A line that ``samestep train`` prints after an epoch."""


@dataclass(slots=True)
class Epochs:
    """The finished epochs of ``samestep train``, with the times at which they were read from its output."""

    total: int = 0  # epochs of the training; 0 if none has been read
    first: tuple[int, float] = (0, 0.0)  # an epoch, and the time in seconds
    last: tuple[int, float] = (0, 0.0)

    def read(self, output: bytes, now_s: float) -> None:
        """Read new output; a training that starts again is measured from its first new epoch."""
        lines = _EPOCH.findall(output)
        if not lines:
            return
        epoch, total = map(int, lines[-1])  # several lines at once arrived at times that are unknown
        if total != self.total or epoch <= self.last[0]:
            self.total, self.first = total, (epoch, now_s)
        self.last = (epoch, now_s)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that the epochs left are expected to take; None before two were measured."""
        epochs = self.last[0] - self.first[0]
        if not epochs:
            return None
        each_s = (self.last[1] - self.first[1]) / epochs
        return max(0.0, each_s * (self.total - self.last[0]) - (now_s - self.last[1]))


@dataclass(slots=True)
class JobTimes:
    """The times of a job, by its scheduler where that reports them, else from when it is followed."""

    _status: JobStatus = field(default_factory=lambda: JobStatus(words=""))
    _polled_s: float = 0.0  # time of `_status`
    _since_s: float | None = None  # time at which the job was first seen to wait, or to run
    _waited_s: float | None = None  # seconds for which it was seen to wait
    epochs: Epochs = field(default_factory=Epochs)  # of its output

    def update(self, status: JobStatus, now_s: float) -> None:
        """Record a new status of the job."""
        if not status.is_known:
            return
        if self._since_s is None or status.waits != self._status.waits:
            self._waited_s = self.state_s(now_s) if self._status.waits else None
            self._since_s = now_s if status.exit_code is None else None
        self._status, self._polled_s = status, now_s

    def state_s(self, now_s: float) -> float | None:
        """Return the seconds for which the job waits, or has run; None if it was not seen to."""
        if not self._status.waits and self._status.elapsed_s is not None:
            ended = self._status.exit_code is not None
            return self._status.elapsed_s + (0.0 if ended else now_s - self._polled_s)
        return None if self._since_s is None else now_s - self._since_s

    def limit_left_s(self, now_s: float) -> float | None:
        """Return the seconds until the time limit of a job that runs; None if it has none."""
        ran_s, limit_s = self.state_s(now_s), self._status.limit_s
        return None if limit_s is None or ran_s is None or self._status.waits else max(0.0, limit_s - ran_s)

    def change_in_words(self, now_s: float) -> str:
        """Return what is added to the line about a new state: the time of the last one, and the limit."""
        status, ran_s = self._status, self.state_s(now_s)
        if status.exit_code is not None:
            return "" if ran_s is None else f", after {_text(ran_s)}"
        waited = "" if self._waited_s is None else f", after {_text(self._waited_s)} of waiting"
        limit = (
            "" if status.limit_s is None or status.waits else f"; its time limit is {_text(status.limit_s)}"
        )
        return f"{waited}{limit}"

    def in_words(self, now_s: float) -> str:
        """Return how long the job waits or has run, and what is known about the time left."""
        status, state_s = self._status, self.state_s(now_s) or 0.0
        if status.waits:
            expected = f"; its start is expected at {status.expected_start}" if status.expected_start else ""
            return f"waits for {_text(state_s)}{expected}"
        parts = [f"has run for {_text(state_s)}"]
        if (left_s := self.epochs.left_s(now_s)) is not None:
            parts.append(f"epoch {self.epochs.last[0]} of {self.epochs.total}, about {_text(left_s)} left")
        if (limit_left_s := self.limit_left_s(now_s)) is not None:
            parts.append(f"{_text(limit_left_s)} until its time limit")
        if len(parts) == 1:
            parts.append("the time left is unknown")
        return "; ".join(parts)


def _text(seconds: float) -> str:
    return seconds_text(round(seconds))


_LOG_S = 0.3  # seconds between two reads of the log
_FIRST_S, _GROWTH = 0.5, 1.3  # the first interval, and by what the next ones grow
_LONGEST_WAITING_S, _LONGEST_S = 15.0, 5.0
"""Seconds between two polls of the job; they are rare because a scheduler serves many users."""


class FollowedJob(Protocol):
    """A job whose state can be polled."""

    name: str
    number: str
    stop: str
    """The command that ends it."""

    def status(self) -> JobStatus:
        """Return the present state of the job."""

    def close(self) -> None:
        """End what was started to follow the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """The start of a job's own part of its log, since an earlier job may have written a log of this name."""

    since_ns: int = 0  # modification time from which on it can be the job's
    appends: bool = False  # whether the job leaves what is in it, and does not overwrite it


class LogReader:
    """A reader of a file that grows; `show` prints each new part."""

    def __init__(self, show: Callable[[bytes], None], start: LogStart) -> None:
        self._show, self._start = show, start
        self._read = 0
        # Time and size of a log that an earlier job has left; 0, 0 of none; None if no log has been seen.
        self._left: tuple[int, int] | None = None

    @property
    def has_log(self) -> bool:
        """Whether there was a log."""
        return self._left is not None

    def read(self, path: Path | None) -> None:
        """Print what was added since the last call."""
        try:
            if path is None or self._is_left(status := path.stat()):
                return
            if not (size := status.st_size) or size == self._read:
                return
            if size < self._read:  # it was overwritten
                self._read = 0
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:  # it does not exist yet
            return
        self._read += len(new)
        self._show(new)

    def _is_left(self, status: os.stat_result) -> bool:
        """Return whether a log is still as an earlier job has left it.

        Its time alone does not tell: the clocks of file systems differ.
        """
        state = (status.st_mtime_ns, status.st_size)
        if self._left is None:
            is_older = status.st_mtime_ns < self._start.since_ns
            self._left = state if is_older else (0, 0)
            self._read = status.st_size if is_older and self._start.appends else 0
        return state == self._left


def follow(
    job: FollowedJob,
    *,
    start: LogStart = LogStart(),
    log: Callable[[str], None],
    show: Callable[[bytes], None],
    show_times: Callable[[str], None] = lambda _: None,
    pause: Callable[[float], None] = sleep,
    now: Callable[[], float] = monotonic,
) -> int:
    """Follow a job until it has ended, and return its exit code.

    Args:
        job: the job.
        start: which part of its log is its own.
        log: receives each change of its state, as a sentence.
        show: prints its output.
        show_times: receives, again and again, how long it waits or has run, and what is known about the
            time left; empty when it has ended.
        pause: waits for some seconds.
        now: returns the time in seconds.
    """
    times = JobTimes()

    def show_output(new: bytes) -> None:
        times.epochs.read(new, now())
        show(new)

    reader, logged, every, polled = LogReader(show_output, start), "", _FIRST_S, float("-inf")
    status = JobStatus(words="")
    while True:
        if (time := now()) - polled >= every:
            status, polled = job.status(), time
            times.update(status, time)
            if status.exit_code is not None:
                show_times("")
                reader.read(status.log)
            if status.words != logged:
                more = times.change_in_words(time) if status.is_known else ""
                log(f"{job.name} {status.words}{more}.")
                logged, every = status.words, _FIRST_S
            if status.exit_code is not None and not (reader.has_log or status.cut_off or status.log is None):
                log(f"there is no log {status.log} here.")
            every = min(every * _GROWTH, _LONGEST_WAITING_S if status.waits else _LONGEST_S)
            if status.exit_code is not None:
                return status.exit_code
        reader.read(status.log)
        show_times(f"{job.name} {times.in_words(time)}")
        pause(_LOG_S)
