"""Looks after the workers of one node: one failure stops all, and a signal to the launcher reaches all."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from samestep.base.errors import PUT_OFF
from samestep.base.signals import ENDS, WARNINGS
from samestep.launch.backends.verdicts import Verdict
from samestep.launch.failure import Failure, root_cause
from samestep.launch.job import Job
from samestep.launch.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one round of workers ended.

    Args:
        cause: the failure that came first; None where nothing failed.
        interrupted_by: the signal that ended the launcher; 0 for none.
        put_off: whether all workers ended with `PUT_OFF`: asked to stop, they can go on later.
        elsewhere: why another node has ended, where this one ends for that reason.
        silent_copies: whether all workers ended well and none had ever met another.
    """

    cause: Failure | None = None
    interrupted_by: int = 0
    put_off: bool = False
    silent_copies: bool = False
    elsewhere: Verdict | None = None


@dataclass(slots=True)
class Signals:
    """The signals that asked the launcher to end, and a file descriptor that wakes its waiting."""

    wakeup: int
    files: Sequence[int] = ()
    """The descriptors that serve this, none of a worker's business."""
    received: list[int] = field(default_factory=list)
    passed_on: list[int] = field(default_factory=list)
    """Those that are for the workers, and have not reached them yet."""

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal that the workers are to have."""
        self.passed_on.append(number)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal."""
        self.received.append(number)

    @property
    def are_shared(self) -> bool:
        """Whether the workers may have the first signal too: a terminal sends Ctrl-C to them as well."""
        return self.received[0] == signal.SIGINT and in_foreground()


@contextmanager
def signals_noted() -> Iterator[Signals]:
    """Note SIGINT, SIGTERM and SIGHUP instead of ending by them; what was ignored stays ignored.

    What announces the end of a job's time is noted for the workers.
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
    # Wakes the launcher for the orphans that it is to reap.
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
    """Wait until all workers have ended; after the first failure or signal, see to it that they do."""
    while workers.running and not workers.failures and not signals.received:
        workers.wait()
        hand_on(workers, signals)
    return conclude(workers, signals, job)


def hand_on(workers: Workers, signals: Signals) -> None:
    """Give the workers the signals that are for them."""
    while signals.passed_on:
        workers.signal(signals.passed_on.pop(0))


def conclude(workers: Workers, signals: Signals, job: Job) -> Outcome:
    """Say how the round ended, after stopping whatever still runs."""
    workers.await_cause(give_up=lambda: bool(signals.received))
    if signals.received:
        workers.stop(
            signals.received[0],
            grace_s=job.patience_s,
            hurry=lambda: len(signals.received) > 1,
            first="nobody" if signals.are_shared else "all",
        )
        return Outcome(interrupted_by=signals.received[0], put_off=_put_off(workers))
    if workers.failures:
        cause = root_cause(workers.failures)
        if cause.exit_code == PUT_OFF:
            # Nothing went wrong: the others are about to end as well, once their last words are said.
            workers.await_end(job.patience_s, hurry=lambda: bool(signals.received))
        workers.stop(signal.SIGTERM, grace_s=job.grace_s, hurry=lambda: bool(signals.received))
        return Outcome(cause=cause, put_off=_put_off(workers))
    # An executable says nothing about itself.
    said = [worker.report.result for worker in workers.all if worker.report is not None]
    return Outcome(silent_copies=bool(said) and not any(said))


def _put_off(workers: Workers) -> bool:
    return bool(workers.all) and all(worker.exit_code == PUT_OFF for worker in workers.all)


def in_foreground(terminal: str = "/dev/tty") -> bool:
    """Return whether the keyboard's signals go to this process group, whatever its stdin is."""
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
