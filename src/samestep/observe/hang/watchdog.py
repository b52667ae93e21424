"""Runs a thread beside the script that posts the status of this rank and detects hangs.

One of the waiting ranks, the first that responds, reports the hang and ends the run. Only time in which this
thread runs counts, so a suspended job (Ctrl-Z) does not hang.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil

from samestep.base.place import Place
from samestep.observe.hang.detection import Advice, Hang, describe, ended_before, find_hang
from samestep.observe.hang.rank_status import RankStatus, State, Wait, parse_status
from samestep.observe.hang.script_position import with_text
from samestep.observe.hang.status_sampling import StatusSampler
from samestep.observe.hang.status_store import StatusStore

INTERVAL_S = 0.5
"""Seconds between two samples; a sixth of the hang timeout if that is less."""
_GONE_S = 2.0
"""Seconds after which a wait for a rank whose script has ended is a hang; both statuses are current then."""
_LAST_STATUS_S = 5.0
"""Seconds to wait, after a connection was lost, for the status of the rank that closed it."""
_WAITING_S = 1.0
"""Seconds in a collective after which a rank counts as waiting for a rank that leaves."""
_QUIET_SAMPLES = 6
"""Number of samples without a new status after which a rank counts as not responding."""


_is_waiting_at_end = threading.Event()
"""Set while this process waits for the other ranks at the end of its script."""


_watching: "list[Watchdog]" = []
"""The watchdog of this process, while its script runs."""


def is_waiting(rank: int) -> bool:
    """Return whether another rank is known to have waited in a collective for `_WAITING_S`."""
    return any(watchdog.has_seen_waiting(rank) for watchdog in _watching)


@contextmanager
def waiting_at_end() -> Iterator[None]:
    """Mark, for the duration of a block, that this rank's script has ended and waits for the other ranks."""
    _is_waiting_at_end.set()
    try:
        yield
    finally:
        _is_waiting_at_end.clear()


def interval_of(limit_s: float) -> float:
    """Return the seconds between two samples for a hang timeout of `limit_s`."""
    return min(INTERVAL_S, limit_s / 6)


class Watchdog:
    """Watches one rank.

    Args:
        place: this rank's place.
        store: holds the statuses of all ranks.
        limit_s: the hang timeout, in seconds.
        generation: number of restarts of the workers before.
        on_hang: called with the message of a hang that this rank reports; ends the process.
        on_abort: called when another rank has aborted the run; ends the process.
        advice: what to do if ranks execute different calls.
    """

    def __init__(
        self,
        place: Place,
        store: StatusStore,
        *,
        limit_s: float,
        generation: int,
        on_hang: Callable[[str], None],
        on_abort: Callable[[], None],
        advice: str,
    ) -> None:
        self._place, self._store, self._limit_s, self._generation = place, store, limit_s, generation
        self._on_hang, self._on_abort = on_hang, on_abort
        self._advice = Advice(
            diverged=advice,
            slow=f"If this is expected, raise --hang-timeout (now {limit_s:g} s; 0 disables the check).",
        )
        self._interval_s = interval_of(limit_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-watchdog", daemon=True)
        self._sampler = StatusSampler(generation)
        self._beats: dict[int, tuple[int, int]] = {}
        """The last beat of each rank, and the number of samples since it changed."""
        self._last = time.monotonic()

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()
        _watching.append(self)

    def has_seen_waiting(self, rank: int) -> bool:
        """Return whether the status of a rank shows a wait in a collective of at least `_WAITING_S`."""
        with suppress(Exception):  # the script may have broken anything
            status = self._statuses().get(rank)
            return status is not None and status.wait is not None and status.wait.age_s >= _WAITING_S
        return False

    def end(self, state: State) -> None:
        """Stop the thread, and post how the script has ended."""
        if self in _watching:
            _watching.remove(self)
        self._over.set()
        self._thread.join()
        with suppress(Exception):  # the script may have broken anything
            self._store.post(self._sampler.sample(0.0, state).to_bytes())
            if state == "ended":
                self._store.linger(self._all_ended)

    def explain_lost_connection(self, line: str) -> str:
        """Return a message, after a connection was lost, if another rank's script had ended; else empty.

        Args:
            line: the line of the script that raised.
        """
        last = self._sampler.last_collective()
        if last is None:
            return ""
        deadline = time.monotonic() + _LAST_STATUS_S
        statuses = self._statuses()
        while (
            not (gone := ended_before(statuses, last))
            and self._is_any_running(statuses)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
            statuses = self._statuses()
        if not gone:
            return ""
        rank = self._place.rank
        statuses[rank] = replace(self._sampler.last, state="running", line=with_text(line), wait=last)
        return self._describe(Hang(wait=last, waiting=(rank,), missing=gone), statuses)

    def _watch(self) -> None:
        try:
            self._tick()
            while not self._over.wait(self._interval_s):
                self._tick()
        except Exception as error:  # noqa: BLE001 - watching must not break what it watches
            sys.stderr.write(f"samestep: the watchdog ends: {type(error).__name__}: {error}\n")

    def _tick(self) -> None:
        now = time.monotonic()
        state: State = "ended" if _is_waiting_at_end.is_set() else "running"
        own = self._sampler.sample(min(now - self._last, 2 * self._interval_s), state)
        self._last = now
        self._store.post(own.to_bytes())
        if self._store.is_aborted:
            self._on_abort()
        if own.wait is None:
            self._beats.clear()
            return
        if own.wait.age_s >= _WAITING_S / 2:
            with suppress(Exception):  # the script may have closed it
                sys.stdout.flush()  # a rank that is terminated inside a collective cannot flush
        statuses = self._statuses()
        self._count_silence(statuses)
        hang = find_hang(
            statuses, self._place.size, limit_s=self._limit_s, gone_s=min(_GONE_S, self._limit_s)
        )
        if hang is not None and self._is_reporter(hang, own.wait):
            text = self._describe(hang, statuses)
            self._store.abort()
            self._on_hang(text)

    def _statuses(self) -> dict[int, RankStatus]:
        """Return the known statuses of this generation, by rank."""
        statuses = {rank: parse_status(message) for rank, message in self._store.read().items()}
        current = {rank: one for rank, one in statuses.items() if one.generation == self._generation}
        return {**current, self._place.rank: self._sampler.last}

    def _count_silence(self, statuses: dict[int, RankStatus]) -> None:
        for rank, status in statuses.items():
            beat, count = self._beats.get(rank, (-1, 0))
            self._beats[rank] = (status.beat, count + 1 if beat == status.beat else 0)

    def _is_reporter(self, hang: Hang, wait: Wait) -> bool:
        able = [rank for rank in hang.waiting if self._beats.get(rank, (0, 0))[1] < _QUIET_SAMPLES]
        return self._place.rank in able[:1] or wait.age_s > 1.5 * self._limit_s + _GONE_S

    def _describe(self, hang: Hang, statuses: dict[int, RankStatus]) -> str:
        own, quiet = statuses[self._place.rank], {}
        for rank, (_, count) in self._beats.items():
            why = _stopped(statuses[rank], own.host) or ("not responding" if count >= _QUIET_SAMPLES else "")
            if why and statuses[rank].state == "running":
                quiet[rank] = why
        return describe(hang, statuses, self._place.size, quiet=quiet, advice=self._advice)

    def _is_any_running(self, statuses: dict[int, RankStatus]) -> bool:
        """Return whether another rank's script may still run."""
        others = [one for rank, one in statuses.items() if rank != self._place.rank]
        return len(others) < self._place.size - 1 or any(one.state == "running" for one in others)

    def _all_ended(self) -> bool:
        """Return whether every other rank's script has ended, or has not responded for a long time."""
        silent = RankStatus(generation=self._generation, beat=-1)
        statuses = {**dict.fromkeys(range(self._place.size), silent), **self._statuses()}
        self._count_silence(statuses)
        return not any(
            one.state in ("running", "left") and self._beats[rank][1] < 10 * _QUIET_SAMPLES
            for rank, one in statuses.items()
            if rank != self._place.rank
        )


def _stopped(status: RankStatus, host: str) -> str:
    with suppress(psutil.Error):
        if status.host == host and psutil.Process(status.pid).status() == psutil.STATUS_STOPPED:
            return f"stopped (process {status.pid} was sent SIGSTOP, or the like)"
    return ""
