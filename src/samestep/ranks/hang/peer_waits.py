"""Explains a failed wait for other ranks by Gloo: which ranks are lost, or wait for each other.

A send of Gloo's ends when it is received, however short the message is; if it is not received, only the
group's timeout ends it. The connection that then breaks is the one to a neighbor, which may have waited
itself. So each rank of a world posts what it waits for. With these statuses,

* ranks that send to each other, and do nothing else, detect the circle::

    rank 0: sends to 1        rank 1: sends to 2        rank 2: sends to 0

* a rank whose wait has failed finds the lost ranks: those that neither wait nor have given up, because they
  are dead, stopped, or busy with other work. The rank that it waits for may wait as well. Then it closes its
  connections, so that the ranks that wait for it fail too and search, instead of waiting on::

    rank 3  waits for  rank 2  waits for  rank 1     which waits for no rank
"""

import atexit
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from samestep.base.errors import Error, OutOfStep, PeerLost
from samestep.base.place import Place
from samestep.base.units import format_ranks, verb
from samestep.ranks.hang import watchdog
from samestep.ranks.hang.current_call import Call, CallRecord
from samestep.ranks.hang.detection import chain_of_waits, find_circle
from samestep.ranks.hang.rank_status import ProcessGroupStore, RankStatus, StatusStore, Wait
from samestep.ranks.hang.watchdog import INTERVAL_S, StatusMonitor, StatusSampler

_LINES = 4  # maximum number of lost ranks whose lines are stated: a guess at what is read
_DOING = {"send": "sends to", "recv": "receives from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Lost ranks, and the chain of waits that leads to them."""

    missing: tuple[int, ...]  # the lost ranks; none if each rank waits for another
    # the rank that searches, the rank it waits for, the rank that one waits for, and so on
    way: tuple[int, ...]


def waiting_ranks(before: Mapping[int, RankStatus], after: Mapping[int, RankStatus]) -> dict[int, Wait]:
    """Return the waits of the ranks that wait, or have given up, by their statuses at two times."""
    return {
        rank: status.wait
        for rank, status in after.items()
        if status.wait is not None
        and (status.gave_up or rank not in before or status.beat != before[rank].beat)
    }


def find_lost(rank: int, size: int, waits: Mapping[int, Wait]) -> Loss:
    """Return the lost ranks.

    `rank` is the one that searches, whose wait is known; `waits` are those of live ranks.
    """
    *before, last = way = chain_of_waits(rank, {waiting: wait.peer for waiting, wait in waits.items()})
    if last in before:
        missing: tuple[int, ...] = ()
    elif last in waits:  # for all ranks
        missing = tuple(missing_rank for missing_rank in range(size) if missing_rank not in waits)
    else:
        missing = (last,)
    return Loss(missing=missing, way=tuple(way))


def describe_circle(circle: list[int], waits: Mapping[int, Wait]) -> str:
    """Return the waits of ranks that wait for each other as text."""
    return ", ".join(
        f"rank {waiting} {_DOING[waits[waiting].op]} rank {waits[waiting].peer}" for waiting in circle
    )


def describe_loss(loss: Loss, statuses: Mapping[int, RankStatus], error: str) -> str:
    """Return the message about lost ranks; `error` is that of the back end."""
    rank, *peers = loss.way
    waits = ", ".join(
        f"rank {waiting} {'waited ' if waiting == rank else ''}for rank {peer}"
        for waiting, peer in zip(loss.way, peers, strict=False)
    )
    lines = {
        lost_rank: statuses[lost_rank].line for lost_rank in loss.missing[:_LINES] if lost_rank in statuses
    }
    known = [waits] * (len(peers) > 1) + [
        f"rank {lost_rank} was last at {line}" for lost_rank, line in lines.items() if line
    ]
    if not loss.missing:
        return f"rank {rank} has waited in vain, though no rank is missing: {waits or error}"
    lost = f"{format_ranks(loss.missing)} {verb(loss.missing, 'is', 'are')} lost to rank {rank}"
    return f"{lost} ({'; '.join(known)}): {error}" if known else f"{lost}: {error}"


GRACE_S = 2.0
"""Seconds that a rank that gives up waits for the statuses of live ranks: four of their intervals."""
_LONGER_ON_MAIN = 1.5  # factor on rank 0, whose store the others read until they have given up: a guess
_ABOUT_OTHERS = ("timed out", "timeout", "connection", "broken pipe", "socket", "closed")
"""Parts of Gloo's errors that another rank causes, not the call itself."""
_UNUSED_TAG = 0x5A3E  # arbitrary: no message of samestep or torch has it


class PeerMonitor(StatusMonitor):
    """Posts the waits of one world, and ends those of ranks that wait for each other."""

    def __init__(
        self, place: Place, store: StatusStore, record: CallRecord, ends: Sequence[Callable[[], None]]
    ) -> None:
        super().__init__(place, store, StatusSampler(0, lambda: record.call), interval_s=INTERVAL_S)
        self._record, self._ends = record, ends
        # A weak reference: this object can exist until the interpreter ends, and the group must not; see
        # `ProcessGroupWorld.close`.
        group = dist.group.WORLD
        self._group = None if group is None else weakref.ref(group)
        self._circle: dict[int, tuple[int, int]] = {}
        """Ranks that waited for each other when first sampled: numbers of their calls, and their beats."""

    def is_posted(self, before: RankStatus, status: RankStatus) -> bool:
        """See `StatusMonitor.is_posted`; only waits and their ends are, since stores can be slow."""
        return status.wait is not None or before.wait is not None

    def examine(self, status: RankStatus) -> None:
        """End the wait of this rank if ranks wait for each other in two samples, and can do nothing else."""
        if status.wait is None or not status.wait.alone or status.gave_up:
            self._circle = {}
            return
        self.store.refresh()
        statuses = self.statuses()
        waits = {
            rank: posted.wait
            for rank, posted in statuses.items()
            if posted.wait is not None and not posted.gave_up
        }
        circle = find_circle(self.place.rank, {rank: wait.peer for rank, wait in waits.items() if wait.alone})
        now = {rank: (waits[rank].number, statuses[rank].beat) for rank in circle}
        before = self._circle
        if _numbers(now) != _numbers(before):
            self._circle = now
        elif circle and all(beat > before[rank][1] for rank, (_, beat) in now.items()):
            self.sampler.circle = describe_circle(circle, waits)
            self.post()
            self.store.refresh()
            if (call := self._record.call) is not None and call.number == status.wait.number:
                self.sever()

    def circle(self) -> str:
        """Return the ranks that wait for each other as text, if any rank has posted them; else empty."""
        return next((status.circle for status in self.statuses().values() if status.circle), "")

    def give_up(self, call: Call) -> bool:
        """Post that a call of this rank has failed; return whether the store answered."""
        self.sampler.give_up(call)
        self.post()
        return self.store.refresh()

    def sever(self) -> None:
        """Close this rank's connections: a wait of Gloo's that times out closes all of its group."""
        for end in self._ends:
            end()
        for peer in range(self.place.size):
            if peer == self.place.rank or self._group is None or dist.group.WORLD is not self._group():
                continue
            try:
                work = dist.irecv(torch.empty(1, device="cpu"), peer, tag=_UNUSED_TAG)
                assert work is not None  # this rank is in the group
                work.wait(timedelta(milliseconds=1))
            except (RuntimeError, ValueError) as error:  # the script may destroy the group meanwhile
                if "Timed out" in str(error):  # else the connection to this rank was closed before
                    return

    def stop(self) -> None:
        """See `StatusMonitor.stop`."""
        super().stop()
        self.store.close()


class PeerWaits:
    """Records a world's waits for messages and collectives of Gloo's, and explains those that fail."""

    def __init__(self, place: Place) -> None:
        self._place, self._record = place, CallRecord()
        self._monitor: PeerMonitor | None = None
        self._ends: list[Callable[[], None]] = []

    def end_too(self, end: Callable[[], None]) -> None:
        """Call `end` when this rank gives up, beside closing Gloo's connections."""
        self._ends.append(end)

    def begin(self, op: str, peer: int | None = None, *, alone: bool = False) -> Call:
        """Record that this rank begins to wait, and return the wait; see `Call`."""
        if self._monitor is None:
            self._monitor = self._started()
        return self._record.begin(op, peer, alone)

    def end(self) -> None:
        """Record that the wait is over."""
        self._record.call = None

    def explain_start(self, op: str, peer: int | None, error: RuntimeError) -> None:
        """Raise the error that explains why a message could not be started; see `explain`."""
        try:
            self.explain(self.begin(op, peer), error)
        finally:
            self.end()

    def explain(self, call: Call, error: RuntimeError) -> None:
        """Raise the error that explains one of Gloo's; return if no other rank caused it.

        Raises:
            OutOfStep: ranks wait for each other.
            PeerLost: a rank is gone, or did not join the operation in time.
        """
        if not any(words in str(error).lower() for words in _ABOUT_OTHERS):
            return
        self._record.has_failed = True
        try:
            raise self._reason(call, str(error)) from error
        finally:
            self._record.has_failed = False

    @contextmanager
    def waiting(self, op: str) -> Iterator[None]:
        """Run a block that waits for all ranks, and explain its error if the wait fails.

        Raises:
            PeerLost: a rank is gone, or did not join the operation in time.
        """
        call = self.begin(op)
        try:
            yield
        except RuntimeError as error:
            self.explain(call, error)
            raise
        finally:
            self.end()

    def close(self) -> None:
        """Stop the thread; the next wait starts another one."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            atexit.unregister(monitor.stop)
            monitor.stop()

    def _started(self) -> PeerMonitor:
        """Start a monitor for as long as this object exists."""
        store = ProcessGroupStore(
            self._place,
            interval_s=INTERVAL_S,
            served_here=False,
            prefix="samestep/waits",
        )
        monitor = PeerMonitor(self._place, store, self._record, self._ends)
        # A thread that is inside torch when the interpreter ends would abort the process.
        atexit.register(monitor.stop)
        weakref.finalize(self, partial(_abandon, monitor)).atexit = False
        monitor.begin()
        return monitor

    def _reason(self, call: Call, error: str) -> Error:
        """Return the error to raise for a failed wait."""
        assert self._monitor is not None  # a wait has begun
        monitor = self._monitor
        circle = monitor.circle()
        answered = monitor.give_up(call)
        if circle := circle or monitor.circle():
            if self._place.is_main:  # it may serve the store, in which the other ranks find the circle
                time.sleep(2 * INTERVAL_S)
            return OutOfStep(
                f"the ranks wait for each other: {circle}. World.exchange sends and receives at once."
            )
        before = monitor.statuses()
        monitor.sever()
        if not answered:
            peer = "a rank" if call.peer is None else f"rank {call.peer}"
            return PeerLost(
                f"{peer} is lost to rank {self._place.rank}, or waits itself (the store does not answer): "
                f"{error}"
            )
        # Rank 0 may serve the store, which the other ranks still need.
        time.sleep(GRACE_S * (_LONGER_ON_MAIN if self._place.is_main else 1.0))
        monitor.store.refresh()
        loss = find_lost(self._place.rank, self._place.size, waiting_ranks(before, monitor.statuses()))
        return PeerLost(describe_loss(loss, watchdog.statuses_here(), error))


def _numbers(circle: dict[int, tuple[int, int]]) -> dict[int, int]:
    return {rank: number for rank, (number, _) in circle.items()}


def _abandon(monitor: PeerMonitor) -> None:
    """Let the thread of a world that was not closed end; the garbage collector must not wait for it."""
    atexit.unregister(monitor.stop)
    monitor.abandon()
