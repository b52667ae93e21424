"""Starts the worker processes of one node, receives their reports, and ends them without orphans.

Workers are forked. One that runs Python code has torch imported already; one that runs an executable
is replaced by it. All stay in the launcher's process group, so that Ctrl-C, Ctrl-Z and a debugger's terminal
work as they do for any program. The kernel kills them if the launcher itself is killed.
"""

import gc
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from samestep.base.errors import Error, WorkerFailed
from samestep.base.folders import make_folder, remove_dead, remove_folder
from samestep.base.signals import ENDS
from samestep.base.worker_records import LastSteps, StackDumps
from samestep.launch.job import STDERR
from samestep.launch.local import forking, orphans
from samestep.launch.local.child import (
    Entry,
    InheritedState,
    Report,
    Start,
    become_worker,
    not_started,
    received,
)
from samestep.launch.local.failure import Failure, explain_death, root_cause
from samestep.launch.local.hosting import Ending
from samestep.launch.local.orphans import Lifeline
from samestep.launch.local.output import OutputFlush, Stream
from samestep.ranks.hang.rank_status import RankStatus, SharedMemoryStore, parse_statuses

_POLL_S = 0.05  # seconds between checks of workers whose end wakes nothing, and of statuses in memory
_FLUSH_POLL_S = 0.01  # seconds between reads of the memory in which workers report that they have flushed
_POLITE_S = 5.0  # seconds that workers may take to end where an error has ended the block
_CAUSE_S = 1.0  # seconds to wait for the cause of a failure that is likely a consequence
_STATUS_S = 1.5  # seconds to wait for the statuses of the live workers after one was killed
_FLUSH_S = 1.0  # seconds that workers may take to write their buffered output before they are ended
_SECOND_S = 1.0  # seconds before the ending signal is sent to workers that do not get it at once


@dataclass(slots=True)
class Worker:
    """Launcher's record of one running or ended worker."""

    start: Start
    pid: int
    reports: int  # launcher's end of the report pipe
    exit_code: int | None = None
    report: Report | None = None
    _received: bytearray = field(default_factory=bytearray)

    def read_reports(self) -> bool:
        """Read the available bytes of the report; return False at the end of the pipe."""
        more = True
        with suppress(BlockingIOError):
            while chunk := os.read(self.reports, 1 << 16):
                self._received += chunk
            more = False
        while (report := received(self._received)) is not None:
            self.report = report
        return more

    @property
    def has_reported(self) -> bool:
        """Whether the program has ended, so that the worker only has to exit."""
        return self.report is not None and self.report.final

    @property
    def failure(self) -> Failure | None:
        """Failure of this worker, if it has failed; its report arrives before its end."""
        ending = self.report.ending if self.report and self.report.ending.exit_code else Ending()
        code = (ending.exit_code if self.has_reported else 0) or self.exit_code or 0
        if code == 0:
            return None
        place = self.start.place
        of_program = {**asdict(ending), "exit_code": code}
        return Failure(rank=place.rank, local_rank=place.local_rank, pid=self.pid, **of_program)


class Workers:
    """Workers of one round on this node; the end of the ``with`` block ends them.

    `wait` returns early when `wakeup` becomes readable. Workers do not inherit the `private` descriptors.
    In a run that does not need all (`needs_all`), a failure of another one than rank 0 is none of the run.
    """

    def __init__(
        self, *, wakeup: int | None = None, private: Iterable[int] = (), needs_all: bool = True
    ) -> None:
        self._needs_all = needs_all
        self.all: list[Worker] = []
        self.failures: list[Failure] = []
        self._selector = selectors.DefaultSelector()
        self._watched_by_pid: dict[int, int] = {}
        self._wakeup = wakeup
        self._private = frozenset(private)
        self._folder: Path | None = None
        self._limit: forking.Limit | None = None
        self._inherited: InheritedState | None = None  # set by `start`
        self._undo = ExitStack()
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ)

    def __enter__(self) -> "Workers":
        self._undo.enter_context(_noted_ends())
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers and their processes, whatever ended the block."""
        try:
            if self.running:
                self.stop(signal.SIGTERM, grace_s=_POLITE_S)
        finally:
            self.close()
            self._undo.close()

    @property
    def running(self) -> list[Worker]:
        """Workers that have not ended."""
        return [worker for worker in self.all if worker.exit_code is None]

    @property
    def last_step(self) -> int | None:
        """Last training step that any worker has recorded; None if none has."""
        return None if self._inherited is None else self._inherited.steps.latest()

    def start(self, starts: Sequence[Start], entry: Entry, *, received: Sequence[int] = ()) -> None:
        """Fork one worker for each of `starts`; each runs `entry`.

        No more workers are started once `received`, the launcher's record of signals to end, has one.

        Raises:
            WorkerFailed: the system did not allow that many processes.
        """
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if this process was started with the stream closed
                stream.flush()
        self._limit = forking.raise_file_limit(len(starts))
        with suppress(Error):  # the temporary directory is full, which must not end the workers
            self._folder = make_folder()
        self._inherited = InheritedState(
            launcher=os.getpid(),
            limit=self._limit,
            lifeline=Lifeline(self._folder),
            steps=LastSteps(max(1, len(starts))),
            stacks=StackDumps(),
            flush=OutputFlush(max(1, len(starts))),
            statuses=SharedMemoryStore(starts[0].place.size if starts else 1),
        )
        with _frozen():
            for start in starts:
                if received:
                    break
                self._fork(start, entry, self._inherited)

    def _fork(self, start: Start, entry: Entry, inherited: InheritedState) -> None:
        # The launcher's handlers would take, and lose, a signal between fork and the child's own handlers; a
        # signal before the worker is recorded here would orphan it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            self._add(start, entry, inherited, mask)
        except OSError as error:
            raise WorkerFailed(not_started(start, error)) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _add(
        self, start: Start, entry: Entry, inherited: InheritedState, mask: set[int | signal.Signals]
    ) -> None:
        with ExitStack() as undo:
            for stream in start.streams:
                undo.callback(stream.close)
                stream.open()
            stacks = inherited.stacks.files
            inherited.stacks.add(start.place.local_rank)
            reports, pipe = os.pipe()
            undo.callback(os.close, reports)
            private = {reports, self._selector.fileno(), *self._private, *self._files(), *stacks}
            try:
                pid = forking.fork()
                if pid == 0:
                    become_worker(start, entry, pipe, inherited, mask=mask, private=private)
            finally:
                os.close(pipe)
            undo.pop_all()
        self.all.append(Worker(start=start, pid=pid, reports=reports))
        os.set_blocking(reports, False)
        self._selector.register(reports, selectors.EVENT_READ)
        for stream in start.streams:
            stream.after_fork()
            if stream.read is not None:
                self._selector.register(stream.read, selectors.EVENT_READ, stream)
        if (watch := pidfd(pid)) is not None:
            self._watched_by_pid[pid] = watch
            self._selector.register(watch, selectors.EVENT_READ)

    def _files(self) -> set[int]:
        """Return the descriptors that this process holds for the workers so far."""
        streams = {fd for worker in self.all for stream in worker.start.streams for fd in stream.files}
        return streams | {worker.reports for worker in self.running} | set(self._watched_by_pid.values())

    def wait(self, timeout_s: float | None = None) -> None:
        """Return after an event (a report, an end, a wake-up) or after `timeout_s`."""
        unwatched = any(worker.pid not in self._watched_by_pid for worker in self.running)
        if unwatched and (timeout_s is None or timeout_s > _POLL_S):
            timeout_s = _POLL_S
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, Stream) and key.data.pump() == 0:
                self._selector.unregister(key.fd)
            elif key.fd == self._wakeup:
                os.read(key.fd, 1 << 10)
        # All workers are checked at once: the end of a killed rank precedes the error that it caused.
        for worker in self.running:
            self._poll(worker)
        orphans.reap(but={worker.pid for worker in self.running})
        self._note_failures()

    def _poll(self, worker: Worker) -> None:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        # A worker that still runs its atexit handlers has closed its end already.
        if not worker.read_reports():
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
        needed = [worker for worker in self.all if self._needs_all or worker.start.place.is_main]
        new = [worker.failure for worker in needed if worker.start.place.rank not in known]
        for failure in sorted((f for f in new if f is not None), key=lambda f: f.weight):
            self.failures.append(failure)

    def await_cause(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait a moment for the cause of a failure that is likely a consequence, unless `give_up()`."""
        deadline = time.monotonic() + _CAUSE_S
        while self.failures and root_cause(self.failures).weight and self.running and not give_up():
            if (left := deadline - time.monotonic()) <= 0:
                return
            self.wait(left)

    def cause(self) -> Failure:
        """Return the cause of the failures, of which there is at least one.

        For a worker that a signal killed, the live workers are given a moment to report where they are.
        """
        cause = root_cause(self.failures)
        if cause.exit_code >= 0 or self._inherited is None:
            return cause
        self._await_statuses()
        return explain_death(
            cause,
            self._inherited.stacks.main_frames(cause.local_rank),
            self._known_statuses(),
            size=self.all[0].start.place.size,
        )

    def _await_statuses(self) -> None:
        """Wait until each live worker has sampled its status after this call began, or for `_STATUS_S`."""
        before, deadline = self._known_statuses(), time.monotonic() + _STATUS_S
        while (left := deadline - time.monotonic()) > 0:
            now = self._known_statuses()
            live = [worker.start.place.rank for worker in self.running]
            if not any(_is_stale(before.get(rank), now.get(rank)) for rank in live):
                return
            self.wait(min(left, _POLL_S))

    def _known_statuses(self) -> dict[int, RankStatus]:
        return {} if self._inherited is None else parse_statuses(self._inherited.statuses.read())

    def await_end(self, timeout_s: float, hurry: Callable[[], bool]) -> None:
        """Return when all have ended by themselves, after `timeout_s`, or as soon as `hurry` returns True."""
        self._wait_until(time.monotonic() + timeout_s, hurry)

    def signal(self, number: int, to: Iterable[Worker] | None = None) -> None:
        """Send a signal to those of `to`, or of all workers, that still run."""
        for worker in self.all if to is None else to:
            if worker.exit_code is None:
                os.kill(worker.pid, number)

    def stop(
        self,
        number: int,
        *,
        grace_s: float,
        hurry: Callable[[], bool] = lambda: False,
        first: Literal["working", "all", "none"] = "working",
    ) -> None:
        """End all workers and all processes they started; kill those that take longer than `grace_s`.

        Args:
            number: the signal that ends them.
            grace_s: seconds that they may take to end.
            hurry: called after each event; True ends the waiting.
            first: the workers that get the signal at once. ``working``: not those whose program has ended
                already, which may finish their atexit handlers for a second. ``none``: the keyboard may
                have sent it; all workers get it if none has made progress after a second.
        """
        noted = list(self.failures)
        pids = {worker.pid for worker in self.all}
        started = orphans.family({worker.pid for worker in self.running})
        leaving = [worker for worker in self.running if worker.has_reported]
        still = self._progress()
        deadline = time.monotonic() + grace_s
        self._flush_output(min(time.monotonic() + _FLUSH_S, deadline), hurry)
        if first != "none":
            self.signal(number, None if first == "all" else [w for w in self.all if w not in leaving])
            self.signal(signal.SIGCONT)  # a stopped process would not handle the other signal
        self._wait_until(min(time.monotonic() + _SECOND_S, deadline), hurry)
        if first == "working":
            self.signal(number, leaving)
        elif first == "none" and self._progress() == still:
            self.signal(number)
        self._wait_until(deadline, hurry)
        self.signal(signal.SIGKILL)
        while self.running:
            self.wait()
        # Workers that this method has ended did not fail.
        self.failures = noted
        orphans.end_all(started, ended=pids)

    def _flush_output(self, deadline: float, hurry: Callable[[], bool]) -> None:
        """Let the workers write what they have buffered; those that do not by `deadline` lose it."""
        if self._inherited is None:
            return
        flush = self._inherited.flush
        flush.request()
        while not hurry() and (left := deadline - time.monotonic()) > 0:
            if not any(flush.is_awaited(worker.start.place.local_rank) for worker in self.running):
                return
            self.wait(min(left, _FLUSH_POLL_S))

    def _progress(self) -> list[tuple[bool, bool]]:
        """Return each worker's progress towards its end: whether it has reported, and still runs."""
        return [(worker.has_reported, worker.exit_code is None) for worker in self.all]

    def _wait_until(self, deadline: float, hurry: Callable[[], bool]) -> None:
        while self.running and not hurry() and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def close(self) -> None:
        """Close all descriptors; the workers must have ended."""
        for worker in self.all:
            for stream in worker.start.streams:
                if worker.failure is not None and stream.number == STDERR:
                    stream.append(worker.failure.details or worker.failure.traceback)
                if stream.read is not None:
                    self._forget(stream.read)
                stream.close()
        self._selector.close()
        if self._inherited is not None:
            self._inherited.stacks.close()
            self._inherited.flush.close()
            self._inherited.lifeline.close()
        forking.restore_file_limit(self._limit)
        self._limit = None
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None
        remove_dead()  # of workers that were killed


def _is_stale(before: RankStatus | None, now: RankStatus | None) -> bool:
    """Return whether the status of a running script may have been sampled before an earlier moment."""
    if before is None or now is None or now.state != "running":
        return False
    return now.beat < before.beat + 2  # the next sample may have begun before


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep what exists from the garbage collection in children that are forked in the block.

    The imported modules are not garbage, and no child needs to visit them. In this process garbage of a
    program that starts workers again and again is collected after the block.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()


@contextmanager
def _noted_ends() -> Iterator[None]:
    """Let the ends of children be known in the block, also where SIGCHLD is ignored, as by a parent."""
    is_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    with ExitStack() as stack:
        if is_ignored and threading.current_thread() is threading.main_thread():
            stack.callback(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        yield


def pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if the system provides none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux; before 5.3, or forbidden in this container
        return None
