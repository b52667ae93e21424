"""Gives all ranks of a script the times that rank 0 reads, so that they branch equally on elapsed time.

Without this, a loop such as ``while time.time() < end`` ends a step earlier on one rank than on another. So
does one that adds the durations between events of a device; the figures of its memory are common, too.
Rank 0 publishes each time that the script reads, without waiting; the other ranks wait for the time of the
same read: the n-th of a line since the last call of a model. A rank whose read rank 0 does not make gets its
own time.
"""

import os
import sys
import threading
import time
import timeit  # noqa: F401 - one of the modules with clocks
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from samestep.autopilot.script.call_account import is_internal_code, is_user_code, library_of
from samestep.autopilot.script.published_times import BYTES, PublishedTimes, TimesInMemory, TimesInStore
from samestep.hooks import declarations, device_declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.ranks.collectives.shared_memory_world import NoSharedMemory, segment
from samestep.ranks.hang.watchdog import is_waiting
from samestep.ranks.world.protocol import World

T = TypeVar("T", int, float)
_DECORATORS = str(Path("torch", "utils", "_contextlib.py"))
"""The file of torch's decorators, such as `no_grad`, which call functions of the script."""
_DOWNLOADS = frozenset({"urllib", "requests"})
"""Libraries that call functions of the script differently on rank 0, which alone sends requests."""
_MOST_MISSED = 3
"""Reads of one line that rank 0 did not make, after which the line's times are the rank's own."""


class CommonTimes:
    """The times that the ranks of a script have in common.

    Args:
        published: the times of rank 0.
        is_main: whether this is rank 0.
        offsets: the difference of rank 0's clocks to those of this rank, by the name of the function.
    """

    def __init__(self, published: PublishedTimes, *, is_main: bool, offsets: Mapping[str, float]) -> None:
        self._published, self._is_main, self._offsets = published, is_main, offsets
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._calls = 0
        self._reads: Counter[str] = Counter()
        """The number of reads since the last model call, by function and line."""
        self._missed: Counter[str] = Counter()
        # Of this script: a later one of the same process may have other files of the user.
        self._is_user, self._hides = cache(is_user_code), cache(_hides)

    def advance(self) -> None:
        """Begin the reads after the next model call; all ranks call this at the same point."""
        self._calls += 1
        self._reads.clear()
        if self._is_main:
            self._published.begin(self._calls)

    def read(self, name: str, original: Callable[..., T], *args: Any, depth: int = 2, **kwargs: Any) -> T:
        """Return rank 0's result of a function; this rank's where the script does not call it.

        The function returns a number, or a tuple of numbers. The script's frame is `depth` frames above this
        one.
        """
        own = original(*args, **kwargs)
        if threading.get_ident() != self._thread or os.getpid() != self._process:
            return own
        place = self._place(sys._getframe(depth))  # noqa: SLF001 - the public way copies the whole stack
        if place is None:
            return own
        place, offset = f"{name} {place}", self._offsets.get(name, 0)
        if isinstance(own, tuple):
            return type(own)(self.common(place, one, offset) for one in own)
        return self.common(place, own, offset)

    def common(self, place: str, own: T, offset: float = 0) -> T:
        """Return the time that rank 0 has read at a place: `own` on rank 0.

        Another rank that does not get it returns `own`, by rank 0's clock.
        """
        number = self._reads[place] = self._reads[place] + 1
        key = f"{self._calls} {number} {place}"
        if self._is_main:
            self._published.put(key, own, self._calls)
            return own
        if self._missed[place] < _MOST_MISSED:
            found = self._published.get(key, own, self._calls)
            if found is not None:
                return found
            self._missed[place] += 1
        return own + type(own)(offset)

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


def _hides(file: str) -> bool:
    """Return whether functions that a file calls may run different numbers of times on the ranks."""
    is_internal = is_internal_code(file) and not file.endswith(_DECORATORS)
    return is_internal or library_of(file) in _DOWNLOADS


@contextmanager
def common_times(world: World) -> Iterator[Callable[[], None]]:
    """Let the script read the times of rank 0; yield `CommonTimes.advance`, to call before each model call.

    The ranks of a world without a process group, such as threads, have one clock and no store.
    """
    if not dist.is_initialized():
        yield lambda: None
        return
    clocks: dict[str, Callable[[], float]] = {
        hook.attribute: getattr(sys.modules[hook.owner], hook.attribute) for hook in declarations.CLOCK_READS
    }
    main = world.broadcast_object({name: clock() for name, clock in clocks.items()})
    offsets = {name: main[name] - clock() for name, clock in clocks.items()}
    times = CommonTimes(_published(world), is_main=world.place.is_main, offsets=offsets)

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
        **{
            hook: wrapping(partial(times.read, hook.name))
            for hook in (*device_declarations.EVENT_DURATIONS, *device_declarations.MEMORY_FIGURES)
        },
    }
    with attached_all(hooks):
        yield times.advance


def _published(world: World) -> PublishedTimes:
    """Return the way by which times come to all ranks."""

    def is_stuck() -> bool:
        return is_waiting(0)

    with suppress(NoSharedMemory):
        return TimesInMemory(segment(world, BYTES), is_stuck)
    name = world.broadcast_object(os.urandom(8).hex())
    times = TimesInStore(PrefixStore(f"samestep/times/{name}", _get_default_store()), is_stuck)
    if world.place.is_main:
        times.begin(0)
    world.barrier()
    return times
