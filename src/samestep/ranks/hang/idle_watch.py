"""Ends a run on a single worker that neither computes nor goes on, for which no other rank waits."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from samestep.ranks.hang.monitor import INTERVAL_S
from samestep.ranks.hang.script_position import line_of, main_frames, with_text

_BUSY = 0.05  # share of a core above which the worker and its child processes compute
_TICKS_S = 0.03  # CPU time that does not count: the system measures child processes in steps of 0.01 s


class IdleWatch:
    """Watches the main thread of this process from another thread.

    A worker is idle while its main thread stays at one line of the script, and neither it nor its child
    processes use the CPU: it waits for a lock, a queue, a file or a network. It hangs if it is idle for
    `limit_s`; `on_hang` is called with the line.
    """

    def __init__(self, limit_s: float, on_hang: Callable[[str], None]) -> None:
        self._limit_s, self._on_hang = limit_s, on_hang
        self._interval_s = min(INTERVAL_S, limit_s / 6)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-idle-watch", daemon=True)

    def __enter__(self) -> "IdleWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        line, begin_s, idle_s = "", 0.0, 0.0
        try:
            while not self._over.wait(self._interval_s):
                before, line, used_s = line, line_of(main_frames()), _cpu_seconds()
                idle_s += self._interval_s
                if not line or line != before or used_s - begin_s > _BUSY * idle_s + _TICKS_S:
                    begin_s, idle_s = used_s, 0.0
                elif idle_s >= self._limit_s:
                    self._on_hang(with_text(line))
        except Exception as error:  # noqa: BLE001 - watching must not break what it watches
            sys.stderr.write(f"samestep: the watchdog ends: {type(error).__name__}: {error}\n")


def _cpu_seconds() -> float:
    """Return the CPU time of this process, without the calling thread, and of its child processes."""
    ended = os.times()
    total = time.process_time() - time.thread_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            times = child.cpu_times()
            total += times.user + times.system
    return total
