"""Samples the status of this process from a thread beside the script, posts it, and reads the others'."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace

from samestep.base.place import Place
from samestep.ranks.hang.current_call import Call, call_of_main_thread, failed_message, root_of_main_thread
from samestep.ranks.hang.flight_recorder import CollectiveCount, Recorder, has_group, ranks_of
from samestep.ranks.hang.rank_status import RankStatus, State, Wait, parse_statuses
from samestep.ranks.hang.script_position import (
    BlockedCall,
    blocked_in,
    ddp_part,
    line_of,
    main_frames,
    with_text,
)
from samestep.ranks.hang.status_store import StatusStore

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
        self._found: dict[Hashable, Wait | None] = {}
        """The running collective that the recorder returned for these counts."""
        self._given_up: Call | None = None  # a call that has failed; it is posted until the rank waits again
        self.circle = ""
        """The ranks that wait for each other, as text; posted until the call of this rank has ended."""
        self._latest: Call | None = None
        self._recorded = recorded

    def sample(self, passed_s: float, state: State = "running") -> RankStatus:
        """Return the current status.

        `passed_s` is added to the age of waits since the previous sample.
        """
        before, call, (blocked, line, part) = self.last, self._recorded(), _main_thread()
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
        group, seq = max(entered.items(), key=lambda one: one[1])
        return self._collective(self._recorder.name_of(group, seq), seq, group)

    def _collective(self, op: str, seq: int, group: str) -> Wait:
        recent = self._recorder.recent(group)
        return Wait(op=op, seq=seq, group=group, ranks=ranks_of(group), age_s=0.0, recent=recent)

    def _longest_wait(
        self, counts: dict[str, CollectiveCount], waiting: BlockedCall | Call | None, passed_s: float
    ) -> Wait | None:
        """Return the longest current wait, if it is at least `MIN_WAIT_S` long; a recorded call at once."""
        running = [(group, one) for group, one in counts.items() if one.entered != one.last_ended]
        keys: list[Hashable] = [*running, *([] if waiting is None else [waiting])]
        if isinstance(waiting, BlockedCall) and waiting.is_new:
            self._ages.pop(waiting, None)
        self._ages = {key: self._ages.get(key, -passed_s) + passed_s for key in keys}
        self._found = {key: found for key, found in self._found.items() if key in self._ages}
        for key in sorted(running, key=self._ages.__getitem__, reverse=True):
            if self._ages[key] >= MIN_WAIT_S and (found := self._under_way(key)) is not None:
                return replace(found, age_s=self._ages[key])
        if isinstance(waiting, Call):
            return _wait_of(waiting, age_s=self._ages[waiting]) if self._ages[waiting] else None
        if waiting is None or self._ages[waiting] < MIN_WAIT_S:
            return None
        return Wait(op=waiting.op, seq=None, group="", ranks=(), age_s=self._ages[waiting])

    def _under_way(self, key: tuple[str, CollectiveCount]) -> Wait | None:
        if key not in self._found:
            found = self._recorder.under_way(key[0])
            self._found[key] = None if found is None else self._collective(*found, key[0])
        return self._found[key]


def _wait_of(call: Call, *, age_s: float) -> Wait:
    ranks = () if call.peer is None else (call.peer,)
    return Wait(
        op=call.op, seq=None, group="", ranks=ranks, age_s=age_s, number=call.number, alone=call.alone
    )


def _main_thread() -> tuple[BlockedCall | None, str, str]:
    """Return the call in which the main thread waits, its line of the script, and `ddp_part`.

    The frames are released at once: if their owner returned while this thread holds them, their objects would
    be finalized in this thread.
    """
    frames = main_frames()
    return blocked_in(frames), line_of(frames), ddp_part(frames)


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
