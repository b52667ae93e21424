"""Supervises the workers of one node: one failure stops all, and a signal to the launcher reaches all."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from samestep.base.errors import PREEMPTED
from samestep.base.signals import ENDS, WARNINGS
from samestep.launch.job import Job
from samestep.launch.local.failure import Failure
from samestep.launch.local.workers import Workers
from samestep.launch.node_verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of one round of workers."""

    cause: Failure | None = None  # the first failure; None if no worker failed
    interrupted_by: int = 0  # the signal that ended the launcher; 0 for none
    preempted: bool = False  # whether all workers ended with `PREEMPTED` and can be resumed
    silent_copies: bool = False  # whether all workers succeeded and none had joined another
    elsewhere: Verdict | None = None  # the verdict of another node that ended this node too


@dataclass(slots=True)
class Signals:
    """Received signals of the launcher, and a file descriptor that wakes it from waiting."""

    wakeup: int
    files: Sequence[int] = ()
    """Descriptors of this object, which workers must not inherit."""
    received: list[int] = field(default_factory=list)
    passed_on: list[int] = field(default_factory=list)
    """Signals for the workers that have not been sent to them yet."""

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal for the workers."""
        self.passed_on.append(number)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal that ends the launcher."""
        self.received.append(number)

    @property
    def reach_workers(self) -> bool:
        """Whether the workers may have the first signal too: a terminal sends Ctrl-C to them as well."""
        return self.received[0] == signal.SIGINT and in_foreground()


@contextmanager
def signals_noted() -> Iterator[Signals]:
    """Record SIGINT, SIGTERM and SIGHUP instead of ending by them; ignored signals stay ignored.

    Signals that announce the end of a job's time are recorded for the workers.
    """
    read, write = socket.socketpair()
    os.set_blocking(read.fileno(), False)
    os.set_blocking(write.fileno(), False)
    signals = Signals(wakeup=read.fileno(), files=(read.fileno(), write.fileno()))
    noted = {**dict.fromkeys(ENDS, signals.take), **dict.fromkeys(WARNINGS, signals.pass_on)}
    before = {number: signal.getsignal(number) for number in noted}
    waker = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, noted[number])
    # Wakes the launcher to reap orphans.
    children = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGCHLD, children)
        signal.set_wakeup_fd(waker)
        read.close()
        write.close()


def supervise(workers: Workers, signals: Signals, job: Job) -> Outcome:
    """Wait until all workers have ended; stop them after the first failure or signal."""
    while workers.running and not workers.failures and not signals.received:
        workers.wait()
        forward_signals(workers, signals)
    return conclude(workers, signals, job)


def forward_signals(workers: Workers, signals: Signals) -> None:
    """Send the workers the signals that were recorded for them."""
    while signals.passed_on:
        workers.signal(signals.passed_on.pop(0))


def conclude(workers: Workers, signals: Signals, job: Job) -> Outcome:
    """Stop the workers that still run, and return how the round ended."""
    workers.await_cause(give_up=lambda: bool(signals.received))
    if signals.received:
        workers.stop(
            signals.received[0],
            grace_s=job.patience_s,
            hurry=lambda: len(signals.received) > 1,
            first="none" if signals.reach_workers else "all",
        )
        return Outcome(interrupted_by=signals.received[0], preempted=_preempted(workers))
    if workers.failures:
        cause = workers.cause()
        if cause.exit_code == PREEMPTED:
            # The workers were preempted: the others are about to end as well, after their last output.
            workers.await_end(job.patience_s, hurry=lambda: bool(signals.received))
        workers.stop(signal.SIGTERM, grace_s=job.grace_s, hurry=lambda: bool(signals.received))
        return Outcome(cause=cause, preempted=_preempted(workers))
    # An executable sends no report.
    joined = [worker.report.result for worker in workers.all if worker.report is not None]
    return Outcome(silent_copies=bool(joined) and not any(joined))


def _preempted(workers: Workers) -> bool:
    return bool(workers.all) and all(worker.exit_code == PREEMPTED for worker in workers.all)


def in_foreground(terminal: str = "/dev/tty") -> bool:
    """Return whether the keyboard's signals are sent to this process group, whatever its stdin is."""
    try:
        fd = os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # no controlling terminal
        return False
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(fd)
