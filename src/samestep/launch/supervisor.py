"""Looks after the workers of one node: one failure stops all, and a signal to the launcher reaches all."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from samestep.launch.failure import Failure, root_cause
from samestep.launch.workers import HANDLED_SIGNALS, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one round of workers ended.

    Args:
        cause: the failure that came first; None where nothing failed.
        interrupted_by: the signal that ended the launcher; 0 for none.
        silent_copies: whether all workers ended well and none had ever met another.
    """

    cause: Failure | None = None
    interrupted_by: int = 0
    silent_copies: bool = False


@dataclass(slots=True)
class Signals:
    """The signals that asked the launcher to end, and a file descriptor that wakes its waiting."""

    wakeup: int
    received: list[int] = field(default_factory=list)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal."""
        self.received.append(number)

    @property
    def forward(self) -> int | None:
        """The signal to hand on, or None if the workers have it: a terminal sends Ctrl-C to them as well."""
        number = self.received[0]
        return None if number == signal.SIGINT and _in_foreground() else number


@contextmanager
def signals_noted() -> Iterator[Signals]:
    """Note SIGINT, SIGTERM and SIGHUP instead of ending by them; what was ignored stays ignored."""
    read, write = socket.socketpair()
    os.set_blocking(read.fileno(), False)
    os.set_blocking(write.fileno(), False)
    signals = Signals(wakeup=read.fileno())
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    waker = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signals.take)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waker)
        read.close()
        write.close()


def supervise(workers: Workers, signals: Signals, *, grace_s: float) -> Outcome:
    """Wait until all workers have ended; after the first failure or signal, see to it that they do."""
    while workers.running and not workers.failures and not signals.received:
        workers.wait()
    return conclude(workers, signals, grace_s=grace_s)


def conclude(workers: Workers, signals: Signals, *, grace_s: float) -> Outcome:
    """Say how the round ended, after stopping whatever still runs."""
    workers.await_cause(give_up=lambda: bool(signals.received))
    if signals.received:
        workers.stop(signals.forward, grace_s=grace_s, hurry=lambda: len(signals.received) > 1)
        return Outcome(interrupted_by=signals.received[0])
    if workers.failures:
        cause = root_cause(workers.failures)
        workers.stop(signal.SIGTERM, grace_s=grace_s, hurry=lambda: bool(signals.received))
        return Outcome(cause=cause)
    # An executable says nothing about itself.
    said = [worker.report.result for worker in workers.all if worker.report is not None]
    return Outcome(silent_copies=bool(said) and not any(said))


def _in_foreground() -> bool:
    with suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False
