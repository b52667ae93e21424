"""Runs a thread that posts the status of this rank in intervals, and reads the others' while it waits."""

import sys
import threading
import time

from samestep.base.place import Place
from samestep.ranks.hang.rank_status import RankStatus, State, parse_statuses
from samestep.ranks.hang.status_sampling import StatusSampler
from samestep.ranks.hang.status_store import StatusStore

INTERVAL_S = 0.5
"""Seconds between two samples."""
_JOIN_S = 5.0  # seconds to wait for the thread at its end; the store may not answer


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

    def is_posted(self, before: RankStatus, own: RankStatus) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a status is posted, given the previous one."""
        return True

    def examine(self, own: RankStatus) -> None:
        """Examine the statuses; called in every interval, from the thread."""
        raise NotImplementedError

    def post(self, passed_s: float = 0.0) -> RankStatus:
        """Sample the status of this rank and post it; see `StatusSampler.sample`."""
        with self._sampling:
            before, own = self.sampler.last, self.sampler.sample(passed_s, self.state())
            if self.is_posted(before, own):
                self.store.post(own.to_bytes())
        return own

    def statuses(self) -> dict[int, RankStatus]:
        """Return the known statuses of this generation, by rank."""
        own = self.sampler.last
        statuses = parse_statuses(self.store.read())
        current = {rank: one for rank, one in statuses.items() if one.generation == own.generation}
        return {**current, self.place.rank: own}

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
