"""Ranks that wait for each other or for one that is gone, found while they do.

A message of Gloo's ends when it is received, however short it is, and nothing but the time that its group
was given ends one that is not; what then breaks is the connection to a neighbour, which may have waited
itself. So a thread looks from time to time whether its rank still waits in the same message or collective,
and writes that down in the store. From there

* ranks that send to each other, and do nothing else, know that they do::

    rank 0: sends to 1        rank 1: sends to 2        rank 2: sends to 0

* a rank whose wait has failed finds who is missing: see `samestep.world.missing`. It closes its connections,
  so that those who wait for it look as well, and do not wait on.
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
from samestep.world.missing import Found, Note, find_circle, find_missing, in_words, present
from samestep.world.store import Store

LOOK_S = 0.5
"""Between two looks; what is waited for longer is written down."""
GRACE_S = 4 * LOOK_S
"""How long a rank that gives up waits for others to say that they are there."""
_NOTE, _CIRCLE = "samestep/blocked/{}", "samestep/circle"
_DOING = {"send": "sends to", "recv": "receives from"}
_UNUSED_TAG = 0x5A3E
Wait: TypeAlias = tuple[str, int | None, int, bool]
"""The fields of a `Note` that do not change; made for every message."""
_ABOUT_OTHERS = ("timed out", "timeout", "connection", "broken pipe", "socket", "closed")
"""What Gloo says where another rank is the reason, and not the call."""


class Blocked:
    """What one rank waits for in messages and collectives of Gloo's.

    Args:
        place: of this process.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._rank, self._size = place, place.rank, place.size
        self._store: Store = _get_default_store()
        self._numbers = count()
        self._now: Wait | None = None
        self._seen: Wait | None = None
        """What it waited for at the last look."""
        self._circle: list[tuple[int, int]] = []
        """The ranks that waited for each other at the last look, and the numbers of their waits."""
        self._beat = 0
        self._writing = threading.Lock()
        self._gave_up = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, op: str, peer: int | None = None, *, alone: bool = False) -> Wait:
        """Begin to wait, and return what for.

        Args:
            op: ``send``, ``recv``, ``exchange`` or the name of a collective.
            peer: whom for; None where it is all ranks.
            alone: whether nothing else of this rank is under way.
        """
        self._now = wait = (op, peer, next(self._numbers), alone)
        if self._thread is None:
            self._begin()
        return wait

    def end(self) -> None:
        """Wait no longer."""
        self._now = None

    def explain(self, wait: Wait, error: RuntimeError) -> None:
        """Tell what an error of Gloo's means; return where it is about something else than other ranks.

        Raises:
            OutOfStep: ranks wait for each other.
            PeerLost: a rank is gone, or did not come in time.
        """
        if any(words in str(error).lower() for words in _ABOUT_OTHERS):
            raise self._reason(wait, str(error)) from error

    @contextmanager
    def waiting(self, op: str) -> Iterator[None]:
        """Wait within for all ranks, and tell what it means where that was in vain.

        Args:
            op: the name of a collective.

        Raises:
            PeerLost: a rank is gone, or did not come in time.
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
        """Look no more; a look that the store does not answer is left alone."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(GRACE_S)

    def look(self) -> None:
        """Write down what this rank waits for, if it did so at the last look."""
        with self._writing:
            now, seen = self._now, self._seen
            self._seen = now
            if self._gave_up:
                return
            if now is None or now is not seen:
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
        """Begin to look, as long as there is this object."""
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._over), name="samestep-blocked", daemon=True
        )
        weakref.finalize(self, self._over.set)
        self._thread.start()

    def _reason(self, now: Wait, error: str) -> Error:
        """Return what to raise where a wait has failed; asks beside, since the store may not answer."""
        found: list[Found | str] = []

        def ask() -> None:
            with suppress(RuntimeError):  # of the store
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
        who = "a rank" if now[1] is None else f"rank {now[1]}"
        return PeerLost(
            f"{who} is lost to rank {self._rank}, or waits itself (the store does not answer): {error}"
        )

    def _asked(self, now: Wait) -> Found | str:
        """Return who is missing, or who wait for each other."""
        if self._store.check([_CIRCLE]):
            return self._store.get(_CIRCLE).decode()
        with self._writing:
            self._gave_up = True
            self._write(now)
        before = self._notes()
        self._sever()
        # The first rank may serve the store, and has to outlast those who ask.
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
        """Close this rank's connections: a wait that comes to its time closes all of its group."""
        for peer in range(self._size):
            if peer == self._rank:
                continue
            try:
                work = dist.irecv(torch.empty(1), peer, tag=_UNUSED_TAG)
                assert work is not None  # this rank is in the group
                work.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "Timed out" in str(error):  # else the connection to this one was closed before
                    return


def _watch(reference: "weakref.ref[Blocked]", over: threading.Event) -> None:
    while not over.wait(LOOK_S):
        blocked = reference()
        if blocked is None:
            return
        with suppress(RuntimeError):  # of the store, which may be gone
            blocked.look()
        del blocked
