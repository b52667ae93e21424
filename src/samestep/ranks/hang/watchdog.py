"""Runs a thread beside the script that posts the status of this rank and detects hangs.

One of the waiting ranks, the first that responds, reports the hang and ends the run. Only time in which this
thread runs counts, so a suspended job (Ctrl-Z) does not hang.

A run on a single worker hangs if the worker neither computes nor goes on, for which no other rank waits.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from samestep.base.place import Place
from samestep.ranks.hang.detection import Hang, ended_before, find_hang
from samestep.ranks.hang.monitor import INTERVAL_S, StatusMonitor, StatusSampler
from samestep.ranks.hang.rank_status import RankStatus, State, Wait
from samestep.ranks.hang.report import Advice, HangReport, describe
from samestep.ranks.hang.script_position import ddp_part_of_traceback, line_of, main_frames, with_text
from samestep.ranks.hang.status_store import StatusStore

_GONE_S = 2.0
"""Seconds after which a wait for a rank whose script has ended is a hang; both statuses are current then."""
_LAST_STATUS_S = 5.0
"""Seconds to wait, after a connection was lost, for the status of the rank that closed it."""
_WAITING_S = 1.0  # seconds in a collective after which a rank counts as waiting for a rank that leaves
_STOPPED_SAMPLES = 2
"""Number of samples without a new status after which the system is asked whether a rank was stopped."""
_QUIET_SAMPLES = 6  # number of samples without a new status after which a rank counts as not responding


_watching: "list[Watchdog]" = []  # the watchdog of this process, while its script runs
os.register_at_fork(after_in_child=_watching.clear)


def statuses_here() -> dict[int, RankStatus]:
    """Return the statuses that the watchdog of this process knows, by rank; none without a watchdog."""
    with suppress(Exception):  # the script may have broken anything
        return _watching[-1].statuses() if _watching else {}
    return {}


def interval_of(limit_s: float) -> float:
    """Return the seconds between two samples: at most a sixth of the hang timeout `limit_s`."""
    return min(INTERVAL_S, limit_s / 6)


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
            time.sleep(0.02)
            statuses = self.statuses()
        if not gone:
            return None
        rank = self.place.rank
        statuses[rank] = replace(self.sampler.last, state="running", line=with_text(line), wait=last)
        return self._describe(Hang(wait=last, waiting=(rank,), missing=gone), statuses)

    def examine(self, own: RankStatus) -> None:
        """Detect a hang while this rank waits; if it is the one to do so, report it and end the run."""
        if self.store.is_aborted:
            self._response.on_abort()
        if own.wait is None:
            self._beats.clear()
            return
        if own.wait.age_s >= _WAITING_S / 2:
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
        if hang is not None and self._is_reporter(hang, own.wait):
            report = self._describe(hang, statuses)
            self.store.abort()
            self._response.on_hang(report)

    def _count_silence(self, statuses: dict[int, RankStatus]) -> None:
        for rank, status in statuses.items():
            beat, count = self._beats.get(rank, (-1, 0))
            self._beats[rank] = (status.beat, count + 1 if beat == status.beat else 0)

    def _is_reporter(self, hang: Hang, wait: Wait) -> bool:
        able = [rank for rank in hang.waiting if self._beats.get(rank, (0, 0))[1] < _QUIET_SAMPLES]
        return self.place.rank in able[:1] or wait.age_s > 1.5 * self._response.limit_s + _GONE_S

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
        others = [one for rank, one in statuses.items() if rank != self.place.rank]
        return len(others) < self.place.size - 1 or any(one.state == "running" for one in others)

    def _all_ended(self) -> bool:
        """Return whether every other rank's script has ended, or has not responded for a long time."""
        silent = RankStatus(generation=self.sampler.last.generation, beat=-1)
        statuses = {**dict.fromkeys(range(self.place.size), silent), **self.statuses()}
        self._count_silence(statuses)
        return not any(
            one.state in ("running", "left") and self._beats[rank][1] < 10 * _QUIET_SAMPLES
            for rank, one in statuses.items()
            if rank != self.place.rank
        )


def _stopped(status: RankStatus, host: str) -> str:
    with suppress(psutil.Error):
        if status.host == host and psutil.Process(status.pid).status() == psutil.STATUS_STOPPED:
            return f"stopped (process {status.pid} was sent SIGSTOP, or the like)"
    return ""


_BUSY = 0.05  # share of a core above which the worker and its child processes compute
_TICKS_S = 0.03  # CPU time that does not count: the system measures child processes in steps of 0.01 s


class IdleWatch:
    """Watches the main thread of this process from another thread.

    A worker is idle while its main thread stays at one line of the script, and neither it nor its child
    processes use the CPU: it waits for a lock, a queue, a file or a network. It hangs if it is idle for
    `limit_s`; `on_hang` is called with the line.
    """

    def __init__(self, limit_s: float, on_hang: Callable[[str], None]) -> None:
        self._limit_s, self._on_hang = limit_s, on_hang
        self._interval_s = min(INTERVAL_S, limit_s / 6)
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
