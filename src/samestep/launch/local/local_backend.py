"""Runs all workers of a job on this node, forked from this process, and supervises and restarts them.

One failure stops all workers, and a signal to the launcher reaches all. A serial script has no other
worker that waits for it in vain: it ends as under ``python``, however long its threads and exit functions
take.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from samestep.base import env
from samestep.base.console import open_standard_streams
from samestep.base.errors import PREEMPTED
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.base.signals import WARNINGS, ends_handled, handled, unless_ignored
from samestep.launch.job import STDERR, STDOUT, Job
from samestep.launch.local import output
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.failure import Failure
from samestep.launch.local.orphans import adopt_orphans
from samestep.launch.local.workers import Workers
from samestep.ranks.rendezvous.endpoint import reserved_port
from samestep.ranks.rendezvous.gloo_interface import loopback_only
from samestep.ranks.rendezvous.job_secret import shared_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Reason why a node ends."""

    node: int  # its number
    host: str  # its host name
    text: str  # the failure, as a clause
    code: int  # the exit code of the run, never 0
    weight: int = 0  # as in `Failure`: 0 is a cause, more may be a consequence of another node's failure

    def __str__(self) -> str:
        return f"node {self.node} ({self.host}) has ended: {self.text}"


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
    waker = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    try:
        with (
            ends_handled(signals.take),
            handled(unless_ignored(WARNINGS), signals.pass_on),
            handled([signal.SIGCHLD], lambda *_: None),  # wakes the launcher to reap orphans
        ):
            yield signals
    finally:
        signal.set_wakeup_fd(waker)
        read.close()
        write.close()


def supervise(workers: Workers, signals: Signals, job: Job) -> Outcome:
    """Wait until all workers have ended; stop them after the first failure or signal."""
    while workers.running and not workers.failures and not signals.received:
        workers.wait()
        forward_signals(workers, signals)
    return conclude(workers, signals, job)


def await_end(workers: Workers, signals: Signals) -> None:
    """Wait for a worker that `conclude` has not stopped: its threads and exit functions may write files."""
    while workers.running and not signals.received:
        workers.wait()
        forward_signals(workers, signals)


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
        if job.finishes and all(worker.has_reported for worker in workers.running):
            workers.wait(0)  # for its output until then
        else:
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


_LONGEST_PAUSE_S = 30.0  # pauses stop doubling here, so that they take little of a job's time
_SIGNALS_OF_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class Restarts:
    """Restart policy of one job, which counts its failures and allows `most` restarts.

    Workers that have completed steps since the previous failure are restarted after a second. Otherwise the
    pause doubles, up to 30 seconds. A failure that returns at the same step is taken to return forever.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0  # number of restarts so far
        self.pause_s = 0.0  # seconds to wait before the next restart, after the last failure
        self.is_same = False  # whether the last failure was the same as the previous one, at the same step
        self._before: tuple[tuple[int, str, str], int | None] | None = None

    @property
    def left(self) -> int:
        """Number of restarts that are left."""
        return 0 if self.is_same else self.most - self.done

    def fail(self, cause: Failure, step: int | None) -> None:
        """Record a failure of the workers, and their last step over all restarts, if it is known."""
        first = cause.message.strip().partition("\n")[0]
        now, before = ((cause.exit_code, cause.error, first), step), self._before
        step_before = None if before is None else before[1]
        self.is_same = step is not None and now == before and _failed_by_itself(cause)
        advanced = step is not None and step_before is not None and step_before < step
        self.pause_s = 1.0 if advanced or not self.pause_s else min(2 * self.pause_s, _LONGEST_PAUSE_S)
        self._before = now

    def in_words(self) -> str:
        """Return the decision after the last failure, as the end of a sentence; empty without restarts."""
        if self.is_same and self.most > self.done:
            return "; not started again, because the same failure has returned at the same step"
        if not self.left:
            return ""
        return f"; starting afresh in {self.pause_s:g} s, {self.left} more time(s) allowed"

    def again(self) -> None:
        """Record that the workers are restarted."""
        self.done += 1


def _failed_by_itself(cause: Failure) -> bool:
    """Return whether the workers failed by themselves, rather than by a signal of another process."""
    return cause.exit_code >= 0 or -cause.exit_code in _SIGNALS_OF_FAULTS


RoundEnd = Callable[[Outcome, Restarts], None]
"""Function that receives the outcome of a round, and the restarts that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Restart generation of all workers: their first start, or one after a failure."""

    run_id: str  # name of the run
    restarts: int  # rounds before this one
    max_restarts: int  # maximum number of rounds after the first
    master: tuple[str, int]  # host and port of this round's rendezvous
    store_is_served: bool = False  # whether the launcher already serves a store there; otherwise rank 0 does
    role: str = "default"  # the workers' role


def run(job: Job, entry: Entry, *, local: int, on_round_end: RoundEnd, alone: bool = False) -> Outcome:
    """Run `job` on `local` workers to its end, and restart them after a failure if the job allows it.

    Each worker runs `entry`. `on_round_end` receives the outcome of each round. A worker that starts the
    others itself is started `alone`, without a launcher's variables.
    """
    open_standard_streams()
    adopt_orphans()
    restarts = Restarts(job.max_restarts)
    with signals_noted() as signals, shared_secret() as secret:
        variables = secret.variables | loopback_only(env.snapshot())
        while True:
            # Each round has a separate port, and so a separate store: keys of a dead round would mislead it.
            with (
                reserved_port() as holder,
                Workers(
                    wakeup=signals.wakeup,
                    private=[*signals.files, holder.fileno(), secret.file],
                    needs_all=job.needs_all,
                ) as workers,
            ):
                this = Round(
                    run_id=job.run_id,
                    restarts=restarts.done,
                    max_restarts=job.max_restarts,
                    master=holder.getsockname(),
                    role=job.role,
                )
                here = starts(job, places(local), this, variables=variables, alone=alone)
                workers.start(here, entry, received=signals.received)
                outcome = supervise(workers, signals, job)
                if outcome.cause is not None:
                    restarts.fail(outcome.cause, workers.last_step)
                if still_ends := bool(workers.running):
                    on_round_end(outcome, restarts)
                    await_end(workers, signals)
            if not still_ends:
                on_round_end(outcome, restarts)  # after the last output of the workers
            if outcome.cause is None or outcome.preempted or not restarts.left:
                return outcome
            holds_within(lambda: bool(signals.received), restarts.pause_s, most_s=0.1)
            if signals.received:
                return Outcome(interrupted_by=signals.received[0])
            restarts.again()


def starts(
    job: Job, here: list[Place], this: Round, *, variables: Mapping[str, str], alone: bool = False
) -> list[Start]:
    """Return the place, variables and streams of each worker of this node.

    `variables` are those of this run besides torchrun's; with `alone`, none are set.
    """
    return [
        Start(
            place=place,
            variables={} if alone else worker_variables(place, this) | dict(variables),
            streams=_streams(job, place, this.restarts),
        )
        for place in here
    ]


def places(local: int, *, node: int = 0, nodes: int = 1) -> list[Place]:
    """Return the places of this node's workers, if all nodes have equally many."""
    return [
        Place(
            rank=node * local + local_rank,
            size=nodes * local,
            local_rank=local_rank,
            local_size=local,
            node=node,
            nodes=nodes,
            launcher="samestep",
        )
        for local_rank in range(local)
    ]


def _streams(job: Job, place: Place, restarts: int) -> list[output.Stream]:
    folder = output.log_folder(job.logs, job.run_id, restarts=restarts, local_rank=place.local_rank)
    routes = {
        number: output.route(job.logs, folder, stream=number, rank=place.rank, local_rank=place.local_rank)
        for number in (STDOUT, STDERR)
    }
    return [output.Stream(number, target) for number, target in routes.items() if target != output.Route()]


def place_variables(place: Place, master: tuple[str, int] | None) -> dict[str, str]:
    """Return those of torchrun's variables that give a worker its place, and the rendezvous if known."""
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
    }
    if master is not None:
        variables |= {"MASTER_ADDR": master[0], "MASTER_PORT": str(master[1])}
    return variables


def worker_variables(place: Place, this: Round) -> dict[str, str]:
    """Return all of torchrun's variables for the worker at `place`, and the one that identifies samestep.

    A worker that another launcher started has no agent of torch's kind, and no TORCHELASTIC_*.
    """
    return place_variables(place, this.master) | {
        "ROLE_NAME": this.role,
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.size),
        "TORCHELASTIC_RUN_ID": this.run_id,
        "SAMESTEP_RUN_ID": this.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(this.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(this.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(this.store_is_served),
    }
