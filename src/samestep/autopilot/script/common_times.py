"""Gives all ranks of a script the times that rank 0 reads, so that they branch equally on elapsed time.

Without this, a loop such as ``while time.time() < end`` ends a step earlier on one rank than on another.
Rank 0 puts each time that the script reads into the store, without waiting; the other ranks wait for the time
of the same read: the n-th of a line since the last call of a model. A rank whose read rank 0 does not make
gets its own time.
"""

import os
import sys
import threading
import time
import timeit
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from samestep.autopilot.script.call_account import is_internal_code, is_user_code, library_of
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.ranks.hang.watchdog import is_waiting
from samestep.ranks.world.protocol import World

T = TypeVar("T", int, float)
_CALLS = "calls"  # the key of the number of model calls that rank 0 has begun
_DECORATORS = str(Path("torch", "utils", "_contextlib.py"))
"""The file of torch's decorators, such as `no_grad`, which call functions of the script."""
_DOWNLOADS = frozenset({"urllib", "requests"})
"""Libraries that call functions of the script differently on rank 0, which alone sends requests."""
_SLICE = timedelta(seconds=0.2)
"""The time between checks that rank 0 can still make a read."""
_PATIENCE_S = 60.0
"""Seconds that a rank waits for a time of rank 0."""
_MOST_MISSED = 3
"""Reads of one line that rank 0 did not make, after which the line's times are the rank's own."""
_KEPT_CALLS = 256
"""Model calls after which rank 0 deletes a time."""


class _Store(Protocol):
    """The part of torch's `Store` that times use."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return once there are values; raise `RuntimeError` after `timeout`."""

    def delete_key(self, key: str, /) -> bool:
        """Delete a value."""


class CommonTimes:
    """The times that the ranks of a script have in common.

    Args:
        store: a store of all ranks.
        is_main: whether this is rank 0.
        offsets: the difference of rank 0's clocks to those of this rank, by the name of the function.
        is_stuck: whether rank 0 waits for other ranks.
    """

    def __init__(
        self,
        store: _Store,
        *,
        is_main: bool,
        offsets: dict[str, float],
        is_stuck: Callable[[], bool] = lambda: is_waiting(0),
    ) -> None:
        self._store, self._is_main, self._offsets, self._is_stuck = store, is_main, offsets, is_stuck
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._calls = 0
        self._reads: Counter[str] = Counter()
        """The number of reads since the last model call, by function and line."""
        self._missed: Counter[str] = Counter()
        self._stored: deque[tuple[int, str]] = deque()
        self._user_files: dict[str, bool] = {}
        self._hidden_files: dict[str, bool] = {}

    def advance(self) -> None:
        """Begin the reads after the next model call; all ranks call this at the same point."""
        self._calls += 1
        self._reads.clear()
        if self._is_main:
            self._store.set(_CALLS, str(self._calls))
            while self._stored and self._stored[0][0] < self._calls - _KEPT_CALLS:
                self._store.delete_key(self._stored.popleft()[1])

    def read(self, name: str, original: Callable[[], T], *, depth: int = 2) -> T:
        """Return rank 0's result of a function of the clock; this rank's where the script does not read it.

        The script's frame is `depth` frames above this one.
        """
        own = original()
        if threading.get_ident() != self._thread or os.getpid() != self._process:
            return own
        place = self._place(sys._getframe(depth))  # noqa: SLF001 - the public way copies the whole stack
        return own if place is None else self.common(f"{name} {place}", own, self._offsets.get(name, 0))

    def common(self, place: str, own: T, offset: float = 0) -> T:
        """Return the time that rank 0 has read at a place: `own` on rank 0.

        Another rank that does not get it returns `own`, by rank 0's clock.
        """
        number = self._reads[place] = self._reads[place] + 1
        key = f"{self._calls} {number} {place}"
        if self._is_main:
            self._store.set(key, repr(own))
            self._stored.append((self._calls, key))
            return own
        if self._missed[place] < _MOST_MISSED:
            with suppress(RuntimeError):  # rank 0 has ended, and its store is gone
                if self._await(key):
                    return type(own)(self._store.get(key))
            self._missed[place] += 1
        return own + type(own)(offset)

    def _await(self, key: str) -> bool:
        """Wait until rank 0 has stored a time; return False if it no longer does."""
        begin = time.monotonic()
        while True:
            with suppress(RuntimeError):  # not within the time limit
                self._store.wait([key], _SLICE)
                return True
            has_passed = int(self._store.get(_CALLS)) > self._calls
            if has_passed or self._is_stuck() or time.monotonic() - begin > _PATIENCE_S:
                return False

    def _place(self, caller: FrameType) -> str | None:
        """Return the line of the script that reads; None if ranks may reach it different numbers of times.

        So it is within a call of a module, a loader or a backward, and after the end of the script.
        """
        code = caller.f_code
        if not self._is_user(code.co_filename):
            return None
        frame: FrameType | None = caller
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                return f"{Path(code.co_filename).name} {code.co_firstlineno} {caller.f_lasti}"
            if self._hides(frame.f_code.co_filename):
                return None
            frame = frame.f_back
        return None

    def _is_user(self, file: str) -> bool:
        found = self._user_files.get(file)
        if found is None:
            found = self._user_files[file] = is_user_code(file)
        return found

    def _hides(self, file: str) -> bool:
        found = self._hidden_files.get(file)
        if found is None:
            is_internal = is_internal_code(file) and not file.endswith(_DECORATORS)
            found = self._hidden_files[file] = is_internal or library_of(file) in _DOWNLOADS
        return found


@contextmanager
def common_times(world: World) -> Iterator[Callable[[], None]]:
    """Let the script read the times of rank 0; yield `CommonTimes.advance`, to call before each model call.

    The ranks of a world without a process group, such as threads, have one clock and no store.
    """
    if not dist.is_initialized():
        yield lambda: None
        return
    clocks: dict[str, Callable[[], float]] = {
        **{name: getattr(time, name) for name in declarations.CLOCKS},
        "default_timer": timeit.default_timer,
    }
    name, main = world.broadcast_object((os.urandom(8).hex(), {one: clocks[one]() for one in clocks}))
    offsets = {one: main[one] - clocks[one]() for one in clocks}
    store = PrefixStore(f"samestep/times/{name}", _get_default_store())
    store.set(_CALLS, "0")
    times = CommonTimes(store, is_main=world.place.is_main, offsets=offsets)

    def of_now(original: Callable[..., Any], *args: Any, position: int) -> Any:
        """Call a function that takes a time, by default the current one."""
        if len(args) > position and args[position] is not None:
            return original(*args)
        now = times.read("time", clocks["time"], depth=3)
        return original(*args[:position], time.localtime(now) if position else now)

    hooks = {
        **{hook: wrapping(partial(times.read, hook.attribute)) for hook in declarations.CLOCK_READS},
        **{
            hook: wrapping(partial(of_now, position=int(hook.attribute == "strftime")))
            for hook in declarations.FORMATTED_TIMES
        },
    }
    with attached_all(hooks):
        yield times.advance
