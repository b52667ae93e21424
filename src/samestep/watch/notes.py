"""Takes down the steps of a script beside it, in a thread: the script waits for no disk and no device.

What a device says of its moments is read on the script's own thread, once it has passed: another's question
would spoil a CUDA graph that is captured meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from samestep.measure.clock_file import ClockFile
from samestep.watch.phases import Clocked
from samestep.watch.replay import Replay
from samestep.watch.stolen import Stolen

INTERVAL_S = 2.0
"""Between two looks at what the script did meanwhile, each of which may hold it up for some ms."""


class Notes:
    """The steps that are to be written.

    Args:
        file: where to.
        replay: finds them.
        begin: writes what goes before the first.
    """

    def __init__(self, file: ClockFile, replay: Replay, begin: Callable[[], None]) -> None:
        self._file, self._replay, self._begin = file, replay, begin
        self._steps: deque[Clocked[Any]] = deque()
        self._lines: deque[dict[str, Any]] = deque()
        """Of the steps that were read."""
        self._stolen = Stolen()
        self._has_begun = False
        self.of_device = False
        """Whether the script's own thread calls `read`, as nobody else may ask what steps took."""
        self._error: Exception | None = None
        """Of the thread."""
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="samestep-clock", daemon=True)
        self._thread.start()

    def add(self, step: Clocked[Any]) -> None:
        """Have a step written."""
        self._steps.append(step)

    def read(self) -> None:
        """Go on, and ask what the steps took that have passed; not while a graph is captured."""
        with self._reading:
            self._go_on()
            self._read()

    def close(self, *, waits: bool) -> None:
        """Return once all of them are.

        Args:
            waits: for a device to come to their ends. After an error it may never do so, or refuse whatever
                it is asked: the steps that it has not told of are left out.

        Raises:
            Exception: that of the thread, if it had one.
        """
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._go_on()
        with suppress(RuntimeError):
            if waits and self._steps:
                self._replay.instants.wait(self._steps[-1].end)
            self._read()
        self._write()

    def _go_on(self) -> None:
        for step in self._replay.read():
            if step is not None:
                self.add(step)
                continue
            with self._writing:
                self._steps.clear()
                self._lines.clear()
                self._file.forget_steps()

    def _read(self) -> None:
        instants = self._replay.instants
        while self._steps and instants.has_passed(self._steps[0].end):
            self._lines.append(self._steps.popleft().line(instants, self._stolen))

    def _write_on(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        try:
            with self._reading:
                self._go_on()
                if not self.of_device:
                    self._read()
            if self._lines:
                self._write()
        except Exception as error:  # noqa: BLE001 - told at the end: until then the log must not grow
            self._error = self._error or error

    def _write(self) -> None:
        with self._writing:
            if not self._has_begun:
                self._begin()
                self._has_begun = True
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if lines:
                self._file.write(lines)
