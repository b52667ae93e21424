"""Runs a thread beside the script that samples the status of this rank, posts it, and detects hangs.

One of the waiting ranks, the first that responds, reports the hang and ends the run. Only time in which this
thread runs counts, so a suspended job (Ctrl-Z) does not hang.

A run on a single worker hangs if the worker neither computes nor goes on, for which no other rank waits.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from samestep.base.event_record import note, note_status
from samestep.base.place import Place
from samestep.ranks.hang.current_call import Call, call_of_main_thread, failed_message, root_of_main_thread
from samestep.ranks.hang.detection import Advice, Hang, HangReport, describe, ended_before, find_hang
from samestep.ranks.hang.flight_recorder import CollectiveCount, Recorder, has_group, ranks_of
from samestep.ranks.hang.rank_status import RankStatus, State, StatusStore, Wait, parse_statuses
from samestep.ranks.hang.script_position import (
    BlockedCall,
    blocked_in,
    ddp_part,
    ddp_part_of_traceback,
    line_of,
    main_frames,
    position_of,
    with_text,
)

MIN_WAIT_S = 1.0
"""Shortest wait that is reported; reading the recorder's entries takes milliseconds."""


class StatusSampler:
    """Samples the status of this process repeatedly.

    `recorded` returns the recorded call in which this rank waits.
    """

    def __init__(self, generation: int, recorded: Callable[[], Call | None] = call_of_main_thread) -> None:
        self.last = RankStatus(generation=generation, beat=0, host=socket.gethostname(), pid=os.getpid())
        self._recorder = Recorder()
        self._ages: dict[Hashable, float] = {}
        """Seconds for which the counts of a group, or a call of the script, have not changed."""
        self._running: dict[Hashable, Wait | None] = {}
        """The running collective that the recorder returned for these counts."""
        self._position = 0  # of the main thread, which does not wait for a collective while it moves
        self._given_up: Call | None = None  # a call that has failed; it is posted until the rank waits again
        self.circle = ""
        """The ranks that wait for each other, as text; posted until the call of this rank has ended."""
        self._latest: Call | None = None
        self._recorded = recorded

    def sample(self, passed_s: float, state: State = "running") -> RankStatus:
        """Return the current status.

        `passed_s` is added to the age of waits since the previous sample.
        """
        before, call, (blocked, line, part) = self.last, self._recorded(), self._main_thread()
        counts, has_joined = self._recorder.counts(), has_group()
        if call is None:
            self.circle = ""
        elif call is not self._latest:
            self._given_up, self.circle, self._latest = None, "", call
        wait = None
        if state == "running" and self._given_up is not None:
            wait = _wait_of(self._given_up, age_s=0.0)
        elif state == "running":
            waiting = blocked if call is None else call
            wait = self._longest_wait(counts if has_joined else {}, waiting, passed_s)
        if wait is not None:
            wait = replace(wait, root=root_of_main_thread(wait.op), inside=part)
        self.last = replace(
            before,
            beat=before.beat + 1,
            state="left" if state == "running" and before.has_joined and not has_joined else state,
            line=with_text(line),
            entered={**before.entered, **{group: count.entered for group, count in counts.items()}},
            has_joined=has_joined or before.has_joined,
            wait=wait,
            gave_up=self._given_up is not None,
            circle=self.circle,
        )
        return self.last

    def _main_thread(self) -> tuple[BlockedCall | None, str, str]:
        """Return the call in which the main thread waits, its line of the script, and `ddp_part`.

        If it has moved since the last sample, it waits for no collective: the script has only begun those
        that run, to wait for them later, or another thread waits for them.

        The frames are released at once: if their owner returned while this thread holds them, their objects
        would be finalized in this thread.
        """
        frames, before = main_frames(), self._position
        self._position = position_of(frames)
        if self._position != before:
            self._ages = {key: age for key, age in self._ages.items() if isinstance(key, Call | BlockedCall)}
        return blocked_in(frames), line_of(frames), ddp_part(frames)

    def give_up(self, call: Call) -> None:
        """Record that a call has failed, and that this rank no longer waits in it."""
        if call is not self._latest:
            self.circle, self._latest = "", call
        self._given_up = call

    def failed_call(self, traceback: str) -> Wait | None:
        """Return the call that has raised: a message, or the last collective that this process entered."""
        message = failed_message()
        if message is not None and f"in {message.op}\n" in traceback:
            return _wait_of(message, age_s=0.0)
        entered = {group: count.entered for group, count in self._recorder.counts().items()}
        if not any(entered.values()):
            return None
        group, seq = max(entered.items(), key=lambda item: item[1])
        return self._collective(self._recorder.name_of(group, seq), seq, group)

    def _collective(self, op: str, seq: int, group: str) -> Wait:
        recent = self._recorder.recent(group)
        return Wait(op=op, seq=seq, group=group, ranks=ranks_of(group), age_s=0.0, recent=recent)

    def _longest_wait(
        self, counts: dict[str, CollectiveCount], waiting: BlockedCall | Call | None, passed_s: float
    ) -> Wait | None:
        """Return the longest current wait, if it is at least `MIN_WAIT_S` long; a recorded call at once."""
        running = [(group, count) for group, count in counts.items() if count.entered != count.last_ended]
        keys: list[Hashable] = [*running, *([] if waiting is None else [waiting])]
        if isinstance(waiting, BlockedCall) and waiting.is_new:
            self._ages.pop(waiting, None)
        self._ages = {key: self._ages.get(key, -passed_s) + passed_s for key in keys}
        self._running = {key: collective for key, collective in self._running.items() if key in self._ages}
        for key in sorted(running, key=self._ages.__getitem__, reverse=True):
            if self._ages[key] >= MIN_WAIT_S and (wait := self._under_way(key)) is not None:
                return replace(wait, age_s=self._ages[key])
        if isinstance(waiting, Call):
            return _wait_of(waiting, age_s=self._ages[waiting]) if self._ages[waiting] else None
        if waiting is None or self._ages[waiting] < MIN_WAIT_S:
            return None
        return Wait(op=waiting.op, seq=None, group="", ranks=(), age_s=self._ages[waiting])

    def _under_way(self, key: tuple[str, CollectiveCount]) -> Wait | None:
        if key not in self._running:
            running = self._recorder.under_way(key[0])
            self._running[key] = None if running is None else self._collective(*running, key[0])
        return self._running[key]


def _wait_of(call: Call, *, age_s: float) -> Wait:
    ranks = () if call.peer is None else (call.peer,)
    return Wait(
        op=call.op, seq=None, group="", ranks=ranks, age_s=age_s, number=call.number, alone=call.alone
    )


INTERVAL_S = 0.5
"""Seconds between two samples: a guess."""
_SAMPLES = 6  # least number of samples within a hang timeout: one that is late makes no hang
_JOIN_S = 5.0  # seconds to wait for the thread at its end; the store may not answer: a guess


class StatusMonitor:
    """Posts and reads statuses; a subclass examines them."""

    def __init__(
        self, place: Place, store: StatusStore, sampler: StatusSampler, *, interval_s: float
    ) -> None:
        self.place, self.store, self.sampler, self.interval_s = place, store, sampler, interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-watchdog", daemon=True)
        self._sampling = threading.Lock()
        self._last = time.monotonic()

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def abandon(self) -> None:
        """Let the thread end, without waiting for it."""
        self._over.set()
        self.store.close(wait=False)

    def state(self) -> State:
        """Return the state of the script."""
        return "running"

    def is_posted(self, before: RankStatus, status: RankStatus) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a status is posted, given the previous one."""
        return True

    def examine(self, status: RankStatus) -> None:
        """Examine the statuses; called in every interval, from the thread."""
        raise NotImplementedError

    def post(self, passed_s: float = 0.0) -> RankStatus:
        """Sample the status of this rank and post it; see `StatusSampler.sample`."""
        with self._sampling:
            before, status = self.sampler.last, self.sampler.sample(passed_s, self.state())
            if self.is_posted(before, status):
                self.store.post(status.to_bytes())
        return status

    def statuses(self) -> dict[int, RankStatus]:
        """Return the known statuses of this generation, by rank."""
        last = self.sampler.last
        statuses = parse_statuses(self.store.read())
        current = {rank: status for rank, status in statuses.items() if status.generation == last.generation}
        return {**current, self.place.rank: last}

    def _watch(self) -> None:
        try:
            self._tick()
            while not self._over.wait(self.interval_s):
                self._tick()
        except Exception as error:  # noqa: BLE001 - watching must not break what it watches
            if not self._over.is_set():
                sys.stderr.write(f"samestep: the watchdog ends: {type(error).__name__}: {error}\n")

    def _tick(self) -> None:
        now = time.monotonic()
        passed_s, self._last = min(now - self._last, 2 * self.interval_s), now
        self.examine(self.post(passed_s))


_GONE_S = 2.0
"""Seconds after which a wait for a rank whose script has ended is a hang; both statuses are current then."""
_LAST_STATUS_S = 5.0
"""Seconds to wait, after a connection was lost, for the status of the rank that closed it: ten intervals."""
_POLL_S = 0.02  # seconds between two looks at the statuses meanwhile
_WAITING_S = 1.0  # seconds in a collective after which a rank counts as waiting for a rank that leaves
_STOPPED_SAMPLES = 2
"""Number of samples without a new status after which the system is asked whether a rank was stopped."""
_QUIET_SAMPLES = 6  # number of samples without a new status after which a rank counts as not responding: 3 s
_GONE_SAMPLES = 10 * _QUIET_SAMPLES  # after which it counts as ended: a guess
_NEXT_REPORTER = 1.5  # hang timeouts after which a rank reports in the place of another, which may have ended


_watching: "list[Watchdog]" = []  # the watchdog of this process, while its script runs
os.register_at_fork(after_in_child=_watching.clear)


def statuses_here() -> dict[int, RankStatus]:
    """Return the statuses that the watchdog of this process knows, by rank; none without a watchdog."""
    with suppress(Exception):  # the script may have broken anything
        return _watching[-1].statuses() if _watching else {}
    return {}


def interval_of(limit_s: float) -> float:
    """Return the seconds between two samples: at most `INTERVAL_S`, and `_SAMPLES` in `limit_s`."""
    return min(INTERVAL_S, limit_s / _SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The response of a launcher's watchdog to a hang."""

    limit_s: float  # the hang timeout, in seconds
    on_hang: Callable[[HangReport], None]  # called with a hang that this rank reports; ends the process
    on_abort: Callable[[], None]  # called when another rank has aborted the run; ends the process
    diverged: str  # what to do if ranks execute different calls
    steps: str  # what to do if ranks take different numbers of steps


class Watchdog(StatusMonitor):
    """Watches one rank."""

    def __init__(self, place: Place, store: StatusStore, response: Response, *, generation: int = 0) -> None:
        super().__init__(place, store, StatusSampler(generation), interval_s=interval_of(response.limit_s))
        self._response = response
        self._beats: dict[int, tuple[int, int]] = {}
        """The last beat of each rank, and the number of samples since it changed."""

    def begin(self) -> None:
        """Start the thread."""
        super().begin()
        _watching.append(self)

    def post(self, passed_s: float = 0.0) -> RankStatus:
        """See `StatusMonitor.post`; the status is recorded, too."""
        before = self.sampler.last
        status = super().post(passed_s)
        note_status(status.to_bytes())
        if (status.line, status.collectives) != (before.line, before.collectives):
            waits = f", waits in {status.wait}" if status.wait else ""
            note(f"{status.collectives} collectives entered{waits}, at {status.line}")
        return status

    def end(self, state: State, *, line: str = "", lost: Wait | None = None) -> None:
        """Stop the thread, and post how the script has ended.

        `lost` is the call in which another rank has closed its connection, if one has.
        """
        if self in _watching:
            _watching.remove(self)
        self._over.set()
        self._thread.join()
        with suppress(Exception):  # the script may have broken anything
            last = replace(self.sampler.sample(0.0, state), line=with_text(line) if line else "", wait=lost)
            self.store.post(last.to_bytes())
            if state == "ended":
                self.store.linger(self._all_ended)

    def failed_call(self, traceback: str) -> Wait | None:
        """Return the call of this rank that has raised; None if it has called none."""
        call = self.sampler.failed_call(traceback)
        return None if call is None else replace(call, inside=ddp_part_of_traceback(traceback))

    def explain_lost_connection(self, last: Wait, line: str) -> HangReport | None:
        """Return a report, after a connection was lost, if another rank's script had ended; else None.

        `last` is the call that raised, at a line of the script.
        """
        deadline = time.monotonic() + _LAST_STATUS_S
        statuses = self.statuses()
        while (
            not (gone := ended_before(statuses, last))
            and self._is_any_running(statuses)
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_S)
            statuses = self.statuses()
        if not gone:
            return None
        rank = self.place.rank
        statuses[rank] = replace(self.sampler.last, state="running", line=with_text(line), wait=last)
        return self._describe(Hang(wait=last, waiting=(rank,), missing=gone), statuses)

    def examine(self, status: RankStatus) -> None:
        """Detect a hang while this rank waits; if it is the one to do so, report it and end the run."""
        if self.store.is_aborted:
            self._response.on_abort()
        if status.wait is None:
            self._beats.clear()
            return
        if status.wait.age_s >= _WAITING_S / 2:
            with suppress(Exception):  # the script may have closed it
                sys.stdout.flush()  # a rank that is terminated inside a collective cannot flush
        statuses, limit_s = self.statuses(), self._response.limit_s
        self._count_silence(statuses)
        hang = find_hang(
            statuses,
            self.place.size,
            limit_s=limit_s,
            gone_s=min(_GONE_S, limit_s),
            quiet=self._quiet(statuses),
        )
        if hang is not None and self._is_reporter(hang, status.wait):
            report = self._describe(hang, statuses)
            self.store.abort()
            self._response.on_hang(report)

    def _count_silence(self, statuses: dict[int, RankStatus]) -> None:
        for rank, status in statuses.items():
            beat, count = self._beats.get(rank, (-1, 0))
            self._beats[rank] = (status.beat, count + 1 if beat == status.beat else 0)

    def _is_reporter(self, hang: Hang, wait: Wait) -> bool:
        able = [rank for rank in hang.waiting if self._beats.get(rank, (0, 0))[1] < _QUIET_SAMPLES]
        return self.place.rank in able[:1] or wait.age_s > _NEXT_REPORTER * self._response.limit_s + _GONE_S

    def _describe(self, hang: Hang, statuses: dict[int, RankStatus]) -> HangReport:
        response, quiet = self._response, self._quiet(statuses)
        advice = Advice(
            diverged=response.diverged,
            steps=response.steps,
            slow="If this is expected, raise --hang-timeout "
            f"(now {response.limit_s:g} s; 0 disables the check).",
        )
        return describe(hang, statuses, self.place.size, quiet=quiet, advice=advice)

    def _quiet(self, statuses: dict[int, RankStatus]) -> dict[int, str]:
        """Return the ranks that do not respond, each with the reason."""
        host, quiet = statuses[self.place.rank].host, {}
        for rank, (_, count) in self._beats.items():
            why = _stopped(statuses[rank], host) if count >= _STOPPED_SAMPLES else ""
            why = why or ("not responding" if count >= _QUIET_SAMPLES else "")
            if why and statuses[rank].state == "running":
                quiet[rank] = why
        return quiet

    def _is_any_running(self, statuses: dict[int, RankStatus]) -> bool:
        """Return whether another rank's script may still run."""
        known = [status for rank, status in statuses.items() if rank != self.place.rank]
        return len(known) < self.place.size - 1 or any(status.state == "running" for status in known)

    def _all_ended(self) -> bool:
        """Return whether every other rank's script has ended, or has not responded for a long time."""
        silent = RankStatus(generation=self.sampler.last.generation, beat=-1)
        statuses = {**dict.fromkeys(range(self.place.size), silent), **self.statuses()}
        self._count_silence(statuses)
        return not any(
            status.state in ("running", "left") and self._beats[rank][1] < _GONE_SAMPLES
            for rank, status in statuses.items()
            if rank != self.place.rank
        )


def _stopped(status: RankStatus, host: str) -> str:
    with suppress(psutil.Error):
        if status.host == host and psutil.Process(status.pid).status() == psutil.STATUS_STOPPED:
            return f"stopped (process {status.pid} was sent SIGSTOP, or the like)"
    return ""


_BUSY = 0.05  # share of a core above which the worker and its child processes compute: a guess
_TICKS_S = 0.03  # CPU time that does not count: the system measures child processes in steps of 0.01 s


class IdleWatch:
    """Watches the main thread of this process from another thread.

    A worker is idle while its main thread stays at one line of the script, and neither it nor its child
    processes use the CPU: it waits for a lock, a queue, a file or a network. It hangs if it is idle for
    `limit_s`; `on_hang` is called with the line.
    """

    def __init__(self, limit_s: float, on_hang: Callable[[str], None]) -> None:
        self._limit_s, self._on_hang = limit_s, on_hang
        self._interval_s = interval_of(limit_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-idle-watch", daemon=True)

    def __enter__(self) -> "IdleWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        line, begin_s, idle_s = "", 0.0, 0.0
        try:
            while not self._over.wait(self._interval_s):
                before, line, used_s = line, line_of(main_frames()), _cpu_seconds()
                idle_s += self._interval_s
                if not line or line != before or used_s - begin_s > _BUSY * idle_s + _TICKS_S:
                    begin_s, idle_s = used_s, 0.0
                elif idle_s >= self._limit_s:
                    self._on_hang(with_text(line))
        except Exception as error:  # noqa: BLE001 - watching must not break what it watches
            sys.stderr.write(f"samestep: the watchdog ends: {type(error).__name__}: {error}\n")


def _cpu_seconds() -> float:
    """Return the CPU time of this process, without the calling thread, and of its child processes."""
    ended = os.times()
    total = time.process_time() - time.thread_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            times = child.cpu_times()
            total += times.user + times.system
    return total
