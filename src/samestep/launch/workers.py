"""The worker processes of one node: start them, hear how they end, and leave none behind.

Workers are forked. One that runs Python code has torch imported already; one that runs an executable
becomes it. All stay in the launcher's process group, so that Ctrl-C, Ctrl-Z and a debugger's terminal work
as they do for any program. The kernel kills them should the launcher itself be killed.
"""

import gc
import os
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from samestep.base import env
from samestep.base.place import Place
from samestep.launch.failure import Failure, root_cause
from samestep.launch.hosting import Ending, leave
from samestep.launch.job import STDERR
from samestep.launch.orphans import die_with_parent, end_all, family
from samestep.launch.output import Stream
from samestep.launch.report import Report, received, send

_POLL_S = 0.05
_POLITE_S = 5.0
_CAUSE_S = 1.0
"""How long a failure that looks like another's consequence waits for the other."""
HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one worker is started with.

    Args:
        place: where it stands.
        variables: put into its environment.
        streams: where its output goes; empty for the launcher's own.
    """

    place: Place
    variables: Mapping[str, str]
    streams: Sequence[Stream] = ()


Entry = Callable[[Start, int], Report]
"""Runs in the forked worker and says how that ended.

One that replaces the process does not return; its second argument is where `send` may be called instead.
"""


@dataclass(slots=True)
class Worker:
    """One running or ended worker, as its launcher knows it."""

    start: Start
    pid: int
    reports: int
    """The end of the pipe that its report arrives at."""
    exit_code: int | None = None
    report: Report | None = None
    _received: bytearray = field(default_factory=bytearray)

    def listen(self) -> bool:
        """Take in what has arrived of the report; return False when no more will come."""
        more = True
        with suppress(BlockingIOError):
            while chunk := os.read(self.reports, 1 << 16):
                self._received += chunk
            more = False
        if self.report is None:
            self.report = received(self._received)
        return more

    @property
    def failure(self) -> Failure | None:
        """How this worker failed, if it has; its word comes before its end."""
        ending = self.report.ending if self.report else None
        code = (ending.exit_code if ending else 0) or self.exit_code or 0
        if code == 0:
            return None
        place = self.start.place
        said = ending if ending and ending.exit_code else Ending()
        return Failure(
            rank=place.rank,
            local_rank=place.local_rank,
            pid=self.pid,
            exit_code=code,
            error=said.error,
            message=said.message,
            traceback=said.traceback,
        )


class Workers:
    """The workers of one round on this node; leaving the block they are used in ends them.

    Args:
        wakeup: a file descriptor that becomes readable when `wait` should return early.
    """

    def __init__(self, *, wakeup: int | None = None) -> None:
        self.all: list[Worker] = []
        self.failures: list[Failure] = []
        self._selector = selectors.DefaultSelector()
        self._watched_by_pid: dict[int, int] = {}
        self._wakeup = wakeup
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever ended the block."""
        if self.running:
            self.stop(signal.SIGTERM, grace_s=_POLITE_S)
        self.close()

    @property
    def running(self) -> list[Worker]:
        """Those that have not ended."""
        return [worker for worker in self.all if worker.exit_code is None]

    def start(self, starts: Sequence[Start], entry: Entry) -> None:
        """Fork one worker for each of `starts`; each runs `entry`."""
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing imported so far is garbage: neither here nor in a child is it worth walking through again.
        gc.freeze()
        for start in starts:
            self._fork(start, entry)

    def _fork(self, start: Start, entry: Entry) -> None:
        reports, word = os.pipe()
        launcher = os.getpid()
        # A signal between fork and the child's own handlers would be taken by ours, and lost.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        with warnings.catch_warnings():
            # Python 3.12 warns of any other thread; `fork_is_safe` knows which ones matter.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_worker(start, entry, word, launcher, blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(word)
        os.set_blocking(reports, False)
        self.all.append(Worker(start=start, pid=pid, reports=reports))
        self._selector.register(reports, selectors.EVENT_READ)
        for stream in start.streams:
            stream.after_fork()
            if stream.read is not None:
                self._selector.register(stream.read, selectors.EVENT_READ, stream)
        if hasattr(os, "pidfd_open"):
            self._watched_by_pid[pid] = os.pidfd_open(pid)
            self._selector.register(self._watched_by_pid[pid], selectors.EVENT_READ)

    def _become_worker(
        self, start: Start, entry: Entry, word: int, launcher: int, blocked: set[int | signal.Signals]
    ) -> NoReturn:
        """Turn the forked copy of the launcher into a worker, run it and leave."""
        code = 1
        try:
            die_with_parent(launcher)
            restore_signals(blocked)
            self._selector.close()
            for worker in self.all:
                os.close(worker.reports)
            for stream in start.streams:
                stream.attach()
            env.export(start.variables)
            report = entry(start, word)
            code = report.ending.exit_code
            send(word, report)
        except BaseException:  # noqa: BLE001 - a forked copy must never run the launcher's code
            sys.excepthook(*sys.exc_info())
        finally:
            leave(code)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when something happened: a report, an end, a wake-up; or after `timeout_s`."""
        if not hasattr(os, "pidfd_open") and (timeout_s is None or timeout_s > _POLL_S):
            timeout_s = _POLL_S
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, Stream) and key.data.pump() == 0:
                self._selector.unregister(key.fd)
            elif key.fd == self._wakeup:
                os.read(key.fd, 1 << 10)
        # Who has died is asked of all at once: a rank that was killed is older news than the error it caused.
        for worker in self.running:
            self._look_after(worker)
        self._note_failures()

    def _look_after(self, worker: Worker) -> None:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        # A worker that still runs its atexit handlers has closed its end already.
        if not worker.listen():
            self._forget(worker.reports)
        if pid:
            worker.exit_code = os.waitstatus_to_exitcode(status)
            self._forget(worker.reports)
            os.close(worker.reports)
            if (watch := self._watched_by_pid.pop(worker.pid, None)) is not None:
                self._forget(watch)
                os.close(watch)

    def _forget(self, fd: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(fd)

    def _note_failures(self) -> None:
        known = {failure.rank for failure in self.failures}
        new = [worker.failure for worker in self.all if worker.start.place.rank not in known]
        for failure in sorted((f for f in new if f is not None), key=lambda f: f.weight):
            self.failures.append(failure)

    def await_cause(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Give the cause of what looks like a consequence a moment to be heard of.

        Args:
            give_up: asked whenever something happens; True ends the waiting.
        """
        deadline = time.monotonic() + _CAUSE_S
        while self.failures and root_cause(self.failures).weight and self.running and not give_up():
            if (left := deadline - time.monotonic()) <= 0:
                return
            self.wait(left)

    def signal(self, number: int) -> None:
        """Send a signal to the workers that run and have not said how they ended."""
        for worker in self.running:
            if worker.report is None or number == signal.SIGKILL:
                os.kill(worker.pid, number)

    def stop(self, number: int | None, *, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all workers and everything they started; kill those that take longer than `grace_s`.

        Args:
            number: the signal that asks them to end; None if they have been asked already.
            grace_s: how long they may take, in seconds.
            hurry: asked whenever something happens; True ends the patience.
        """
        noted = list(self.failures)
        pids = {worker.pid for worker in self.all}
        started = family({worker.pid for worker in self.running})
        if number is not None:
            self.signal(number)
        deadline = time.monotonic() + grace_s
        while self.running and not hurry() and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        self.signal(signal.SIGKILL)
        while self.running:
            self.wait()
        # What ended because it was told to did not fail.
        self.failures = noted
        end_all(started, ended=pids)

    def close(self) -> None:
        """Let go of all files; the workers must have ended."""
        for worker in self.all:
            for stream in worker.start.streams:
                if worker.failure is not None and stream.number == STDERR:
                    stream.append(worker.failure.traceback)
                if stream.read is not None:
                    self._forget(stream.read)
                stream.close()
        self._selector.close()


def restore_signals(mask: set[int | signal.Signals]) -> None:
    """In a forked worker: handle signals as a fresh interpreter does, and unblock them as before."""
    signal.set_wakeup_fd(-1)
    for number in HANDLED_SIGNALS:
        # What the launcher was started to ignore (nohup, a job in the background) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
