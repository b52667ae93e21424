"""Takes the stack of another thread while that thread runs."""

import gc
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, repeat, takewhile
from types import FrameType
from typing import Any


def frames_of(thread: int | None) -> list[FrameType]:
    """Return the frames of a thread, innermost first; empty if the thread has ended.

    CPython 3.11 may collect garbage while it makes the object of a frame. A finalizer can then let the other
    thread leave that frame, whose memory is used all the same: the process crashes or hangs. No garbage is
    collected here therefore.

    Args:
        thread: its identifier, as `threading.get_ident` returns it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - the one way to see other threads
        return list(callers(frame))
    finally:
        if was_enabled:
            gc.enable()


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Return a frame and its callers.

    No bytecode runs between two of them, so those of another thread do not change meanwhile.
    """
    steps: Iterable[Any] = chain((frame,), repeat("f_back"))
    return takewhile(bool, accumulate(steps, getattr))
