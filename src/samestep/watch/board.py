"""Where the ranks of a job leave word for each other, without the threads that compute.

Ranks that were forked on one node share a piece of memory: it needs no network, and keeps the last words of a
process that has ended or was stopped. Others use the store of their process group, through a connection of
their own: on one that is shared a word would wait behind whatever the script waits for.
"""

import mmap
import struct
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from samestep.base.place import Place
from samestep.watch.recorder import has_group

_SLOT = 4096
_HEAD = struct.Struct("<II")  # length and checksum of what follows
_PATIENCE = timedelta(seconds=30)
_OVER = "over"
_FLUSH_S, _LOOK_S = 2.0, 0.1


class Board(Protocol):
    """One word of each rank, the last one."""

    @property
    def called_off(self) -> bool:
        """Whether some rank has ended the run, and nobody else tells this one."""

    def post(self, word: bytes) -> None:
        """Leave this rank's word in place of the one before."""

    def read(self) -> Mapping[int, bytes]:
        """Return the words that can be read, by rank."""

    def call_off(self) -> None:
        """Tell all ranks that the run is over."""

    def linger(self, done: "Done") -> None:
        """Stay as long as others need this process to read the board, until `done` says that none does."""


class Done(Protocol):
    """Says whether nobody needs the board any more."""

    def __call__(self) -> bool:
        """Return it."""


class SharedMemory:
    """A board in memory that forked processes share, whose launcher ends them all when one fails.

    Args:
        size: how many ranks; the board must be made before they are forked.
    """

    called_off = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, size * _SLOT)
        self.rank = 0
        """Of this process; set after the fork."""

    def post(self, word: bytes) -> None:
        """See `Board.post`; what is longer than a slot is not left."""
        if len(word) <= _SLOT - _HEAD.size:
            said = _HEAD.pack(len(word), zlib.crc32(word)) + word
            self._memory[self.rank * _SLOT : self.rank * _SLOT + len(said)] = said

    def read(self) -> dict[int, bytes]:
        """See `Board.read`; a word that is being written is left out."""
        found = {}
        for rank in range(self._size):
            slot = self._memory[rank * _SLOT : (rank + 1) * _SLOT]
            length, checksum = _HEAD.unpack_from(slot)
            word = slot[_HEAD.size : _HEAD.size + length]
            if length and zlib.crc32(word) == checksum:
                found[rank] = word
        return found

    def call_off(self) -> None:
        """See `Board.call_off`."""

    def linger(self, done: Done) -> None:
        """See `Board.linger`."""


class GroupStore:
    """A board in the store of the default process group; empty until there is one.

    A thread of its own speaks with the store, which does not answer where its server is stopped.

    Args:
        place: of this rank.
        interval_s: between two exchanges.
        served_here: whether the store goes with this process.
    """

    def __init__(self, place: Place, *, interval_s: float, served_here: bool) -> None:
        self.called_off = False
        self._place, self._interval_s, self._served_here = place, interval_s, served_here
        self._word = b""
        self._words: dict[int, bytes] = {}
        self._is_over = False
        self._wanted, self._hurry, self._left = threading.Event(), threading.Event(), threading.Event()
        self._group_store: Any = None
        """Kept, so that its server outlives the group."""
        self._thread = threading.Thread(target=self._exchange, name="samestep-board", daemon=True)
        self._thread.start()

    def post(self, word: bytes) -> None:
        """See `Board.post`."""
        self._word = word

    def read(self) -> dict[int, bytes]:
        """See `Board.read`; what was there at the last exchange."""
        self._wanted.set()
        self._hurry.set()
        return dict(self._words)

    def call_off(self) -> None:
        """See `Board.call_off`; returns when the others have had time to hear of it."""
        self._is_over = True
        self._flush()
        time.sleep(2 * self._interval_s)

    def linger(self, done: Done) -> None:
        """See `Board.linger`; leaves the last word first, and asks for those of the others."""
        self._wanted.set()
        self._flush()
        if self._group_store is None or not self._served_here:
            return
        while self._thread.is_alive() and not self.called_off and not done():
            self._flush()
            time.sleep(_LOOK_S)
        if self.called_off:  # whoever did speaks with the store once more
            time.sleep(4 * self._interval_s)

    def _flush(self) -> None:
        """Have the store know what was posted, if there is one."""
        self._left.clear()
        self._hurry.set()
        if (has_group() or self._group_store is not None) and self._thread.is_alive():
            self._left.wait(_FLUSH_S)

    def _exchange(self) -> None:
        store: Any = None
        with suppress(Exception):  # the store went with the process that served it
            while True:
                self._hurry.wait(self._interval_s)
                self._hurry.clear()
                store, is_over = store or self._own_connection(), self._is_over
                if store is not None and self._word:
                    self._exchange_with(store, is_over=is_over)
                    self._left.set()
                    if is_over:
                        return

    def _exchange_with(self, store: Any, *, is_over: bool) -> None:
        store.set(str(self._place.rank), self._word)
        if is_over:
            store.set(_OVER, "1")
        self.called_off = self.called_off or store.check([_OVER])
        if self._wanted.is_set():  # which many ranks want rarely
            self._wanted.clear()
            known = [rank for rank in range(self._place.size) if store.check([str(rank)])]
            self._words = {rank: store.get(str(rank)) for rank in known}

    def _own_connection(self) -> Any:
        """Return another connection to the store of the default group, if there is one, with our keys."""
        from samestep.world.network_store import base_of

        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or not c10d.is_initialized():
            return None
        self._group_store = c10d._get_default_store()  # noqa: SLF001 - no public spelling
        if (base := base_of(self._group_store)) is not None:
            base.keep()
        store = self._group_store.clone()
        store.set_timeout(_PATIENCE)
        return c10d.PrefixStore("samestep/watch", store)
