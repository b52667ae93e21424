"""Follows a job to its end: prints each change of its state, and its log as it grows."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from samestep.launch.submit.job_times import JobStatus, JobTimes

_LOG_S = 0.3  # seconds between two reads of the log
_FIRST_S, _GROWTH = 0.5, 1.3
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


class DetachedJob:
    """A script that bash runs without a scheduler, on this host; it outlives the terminal."""

    def __init__(self, script: Path, log: Path) -> None:
        with log.open("xb") as output:
            self._process = subprocess.Popen(
                ["bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log
        self.name = f"job {self._process.pid}"
        self.number = str(self._process.pid)
        # The signal goes to the whole process group, so that mpirun ends the workers on the other hosts.
        self.stop = f"kill -{signal.SIGTERM.name[3:]} -- -{os.getpgid(self._process.pid)}"

    def status(self) -> JobStatus:
        """Return the present state of the script."""
        code = self._process.poll()
        if code is None:
            return JobStatus(words="runs", log=self._log)
        code = 128 - code if code < 0 else code
        words = f"has failed, exit code {code}" if code else "has ended well"
        return JobStatus(words=words, log=self._log, exit_code=code)


class LogReader:
    """A reader of a file that grows; `show` prints each new part."""

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._read = 0

    def read(self, path: Path | None) -> None:
        """Print what was added since the last call."""
        try:
            if path is None or not (size := path.stat().st_size) or size == self._read:
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


def follow(
    job: FollowedJob,
    *,
    log: Callable[[str], None],
    show: Callable[[bytes], None],
    show_times: Callable[[str], None] = lambda _: None,
    pause: Callable[[float], None] = sleep,
    now: Callable[[], float] = monotonic,
) -> int:
    """Follow a job until it has ended, and return its exit code.

    Args:
        job: the job.
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

    reader, logged, every, polled = LogReader(show_output), "", _FIRST_S, float("-inf")
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
            every = min(every * _GROWTH, _LONGEST_WAITING_S if status.waits else _LONGEST_S)
            if status.exit_code is not None:
                return status.exit_code
        reader.read(status.log)
        show_times(f"{job.name} {times.in_words(time)}")
        pause(_LOG_S)
