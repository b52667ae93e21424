"""Takes down the steps of a script beside it, in a thread: the script waits for no disk and no device.

What a device says of its moments is read on the script's own thread, once it has passed: another's question
would spoil a CUDA graph that is captured meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic

from samestep.measure.clock_file import ClockFile
from samestep.measure.instants import Instant, Instants
from samestep.watch.phases import Clocked
from samestep.watch.stolen import Stolen

INTERVAL_S = 0.5
"""Between two looks at the steps that have ended meanwhile."""


class Notes(Generic[Instant]):
    """The steps that are to be written.

    Args:
        file: where to.
        instants: reads their moments.
        begin: writes what goes before the first.
    """

    def __init__(self, file: ClockFile, instants: Instants[Instant], begin: Callable[[], None]) -> None:
        self._file, self._instants, self._begin = file, instants, begin
        self._steps: deque[Clocked[Instant]] = deque()
        self._lines: deque[dict[str, Any]] = deque()
        """Of the steps that were read."""
        self._stolen = Stolen()
        self._has_begun = False
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="samestep-clock", daemon=True)
        self._thread.start()

    def add(self, step: Clocked[Instant]) -> None:
        """Have a step written; not while a graph is captured."""
        self._steps.append(step)
        if self._instants.of_device:
            self._read()

    def forget(self) -> None:
        """Leave out all steps so far."""
        with self._writing:
            self._steps.clear()
            self._lines.clear()
            self._file.forget_steps()

    def close(self, *, waits: bool) -> None:
        """Return once all of them are.

        Args:
            waits: for a device to come to their ends. After an error it may never do so, or refuse whatever
                it is asked: the steps that it has not told of are left out.
        """
        self._over.set()
        self._thread.join()
        with suppress(RuntimeError):
            if waits and self._steps:
                self._instants.wait(self._steps[-1].end)
            self._read()
        self._write()

    def _read(self) -> None:
        while self._steps and self._instants.has_passed(self._steps[0].end):
            self._lines.append(self._steps.popleft().line(self._instants, self._stolen))

    def _write_on(self) -> None:
        while not self._over.wait(INTERVAL_S):
            with self._writing:
                if not self._instants.of_device:
                    self._read()
                if self._lines:
                    self._write()

    def _write(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if lines:
            self._file.write(lines)
