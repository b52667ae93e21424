"""Detects deadlocks among Gloo's ranks: ranks that wait for each other, or for a rank that is gone.

A send of Gloo's ends when it is received, however short the message is; if it is not received, only the
group's timeout ends it. The connection that then breaks is the one to a neighbor, which may have waited
itself. So a thread checks at intervals whether its rank still waits in the same message or collective,
and posts that wait to the store. With these notes,

* ranks that send to each other, and do nothing else, detect the circle::

    rank 0: sends to 1        rank 1: sends to 2        rank 2: sends to 0

* a rank whose wait has failed finds the missing ranks: see `samestep.ranks.world.missing_ranks`. It closes
  its connections, so that the ranks that wait for it fail too and check, instead of waiting on.
"""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import Error, OutOfStep, PeerLost
from samestep.base.place import Place
from samestep.ranks.rendezvous.store import Store
from samestep.ranks.world.missing_ranks import Found, Note, find_circle, find_missing, in_words, present

LOOK_S = 0.5
"""Seconds between two checks; a longer wait is posted to the store."""
GRACE_S = 4 * LOOK_S
"""Seconds that a rank that gives up waits for the notes of live ranks."""
_NOTE, _CIRCLE = "samestep/blocked/{}", "samestep/circle"
_DOING = {"send": "sends to", "recv": "receives from"}
_UNUSED_TAG = 0x5A3E
Wait: TypeAlias = tuple[str, int | None, int, bool]
"""Fields of a `Note` that do not change; one tuple is created for every message."""
_ABOUT_OTHERS = ("timed out", "timeout", "connection", "broken pipe", "socket", "closed")
"""Parts of Gloo's errors that another rank causes, not the call itself."""


class Blocked:
    """Deadlock detection for one rank's waits in messages and collectives of Gloo's.

    Args:
        place: place of this process.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._rank, self._size = place, place.rank, place.size
        self._store: Store = _get_default_store()
        self._numbers = count()
        self._now: Wait | None = None
        self._seen: Wait | None = None
        """Wait that was under way at the last check."""
        self._circle: list[tuple[int, int]] = []
        """Ranks that waited for each other at the last check, and the numbers of their waits."""
        self._beat = 0
        self._writing = threading.Lock()
        self._gave_up = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, op: str, peer: int | None = None, *, alone: bool = False) -> Wait:
        """Record that this rank begins to wait, and return the wait.

        Args:
            op: ``send``, ``recv``, ``exchange`` or the name of a collective.
            peer: the rank it waits for; None for all ranks.
            alone: whether no other message of this rank is under way.
        """
        self._now = wait = (op, peer, next(self._numbers), alone)
        if self._thread is None:
            self._begin()
        return wait

    def end(self) -> None:
        """Record that the wait is over."""
        self._now = None

    def explain(self, wait: Wait, error: RuntimeError) -> None:
        """Raise the error that explains one of Gloo's; return if no other rank caused it.

        Raises:
            OutOfStep: ranks wait for each other.
            PeerLost: a rank is gone, or did not join the operation in time.
        """
        if any(words in str(error).lower() for words in _ABOUT_OTHERS):
            raise self._reason(wait, str(error)) from error

    @contextmanager
    def waiting(self, op: str) -> Iterator[None]:
        """Run a block that waits for all ranks, and explain its error if the wait fails.

        Args:
            op: the name of a collective.

        Raises:
            PeerLost: a rank is gone, or did not join the operation in time.
        """
        wait = self.begin(op)
        try:
            yield
        except RuntimeError as error:
            self.explain(wait, error)
            raise
        finally:
            self.end()

    def close(self) -> None:
        """Stop checking; a check that the store does not answer is abandoned after `GRACE_S`."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(GRACE_S)

    def look(self) -> None:
        """Post this rank's wait to the store, if it was under way at the last check too."""
        with self._writing:
            now, earlier = self._now, self._seen
            self._seen = now
            if self._gave_up:
                return
            if now is None or now is not earlier:
                if self._beat:
                    self._store.set(_NOTE.format(self._rank), "")
                self._beat, self._circle = 0, []
                return
            self._beat += 1
            self._write(now)
        alone = now[-1]
        circle = find_circle(self._rank, self._notes()) if alone else []
        before, self._circle = self._circle, [(rank, note.number) for rank, note in circle]
        if circle and self._circle == before:
            words = (f"rank {rank} {_DOING[note.op]} rank {note.peer}" for rank, note in circle)
            self._store.set(_CIRCLE, ", ".join(words))
            self._sever()

    def _begin(self) -> None:
        """Start the thread that checks, for as long as this object exists."""
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._over), name="samestep-blocked", daemon=True
        )
        weakref.finalize(self, self._over.set)
        self._thread.start()

    def _reason(self, now: Wait, error: str) -> Error:
        """Return the error to raise for a failed wait; a thread asks the store, which may not answer."""
        found: list[Found | str] = []

        def ask() -> None:
            with suppress(RuntimeError):  # the store failed
                found.append(self._asked(now))

        asking = threading.Thread(target=ask, name="samestep-missing", daemon=True)
        asking.start()
        asking.join(3 * GRACE_S)
        if found and isinstance(found[0], str):
            return OutOfStep(
                f"the ranks wait for each other: {found[0]}. World.exchange sends and receives at once."
            )
        if found and isinstance(found[0], Found):
            return PeerLost(in_words(found[0], error))
        other = "a rank" if now[1] is None else f"rank {now[1]}"
        return PeerLost(
            f"{other} is lost to rank {self._rank}, or waits itself (the store does not answer): {error}"
        )

    def _asked(self, now: Wait) -> Found | str:
        """Return the missing ranks, or a description of the ranks that wait for each other."""
        if self._store.check([_CIRCLE]):
            return self._store.get(_CIRCLE).decode()
        with self._writing:
            self._gave_up = True
            self._write(now)
        before = self._notes()
        self._sever()
        # Rank 0 may serve the store, which the other ranks still need.
        time.sleep(GRACE_S * (1.5 if self._place.is_main else 1.0))
        return find_missing(self._rank, self._size, present(before, self._notes()))

    def _write(self, wait: Wait) -> None:
        op, peer, number, alone = wait
        note = Note(op=op, peer=peer, number=number, alone=alone, beat=self._beat, gave_up=self._gave_up)
        self._store.set(_NOTE.format(self._rank), note.to_json())

    def _notes(self) -> dict[int, Note]:
        keys = {rank: _NOTE.format(rank) for rank in range(self._size)}
        texts = {rank: self._store.get(key) for rank, key in keys.items() if self._store.check([key])}
        return {rank: Note.from_json(text) for rank, text in texts.items() if text}

    def _sever(self) -> None:
        """Close this rank's connections: a wait that times out closes all connections of its group."""
        for peer in range(self._size):
            if peer == self._rank:
                continue
            try:
                work = dist.irecv(torch.empty(1), peer, tag=_UNUSED_TAG)
                assert work is not None  # this rank is in the group
                work.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "Timed out" in str(error):  # else the connection to this rank was closed before
                    return


def _watch(reference: "weakref.ref[Blocked]", over: threading.Event) -> None:
    while not over.wait(LOOK_S):
        blocked = reference()
        if blocked is None:
            return
        with suppress(RuntimeError):  # the store may be gone
            blocked.look()
        del blocked
