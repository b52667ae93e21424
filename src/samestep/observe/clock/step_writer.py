"""Writes the clocked steps of a script from a thread, so that the script waits for no disk and no device.

The instants of a device are read on the script's own thread, once they have passed: a query from another
thread would invalidate a CUDA graph that is being captured.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import torch

from samestep.observe.clock.cpu_contention import ContentionEstimator
from samestep.observe.clock.instants import ClockedStep
from samestep.observe.clock.step_reader import StepReader

INTERVAL_S = 2.0
"""Seconds between two passes over the event log; a pass can hold the script up for some ms."""


class StepSink(Protocol):
    """A destination of steps, see `ClockFile`."""

    def header(self, *, device: torch.device, backend: str, sync: str) -> None:
        """Receive the properties of the run, before the first step."""

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Receive steps."""

    def forget_steps(self) -> None:
        """Drop all steps so far."""

    def end(
        self, ended: str, message: str, *, device: torch.device, made: int, samples_per_epoch: int | None
    ) -> None:
        """Receive the end of the run."""


class StepWriter:
    """Writes the steps of `reader` to `sink`; `begin` writes the header before the first one."""

    def __init__(self, sink: StepSink, reader: StepReader, begin: Callable[[], None]) -> None:
        self._sink, self._reader, self._begin = sink, reader, begin
        self._steps: deque[ClockedStep] = deque()
        self._lines: deque[dict[str, Any]] = deque()  # lines of the steps whose instants have been read
        self._contention = ContentionEstimator()
        self._has_begun = False
        self.of_device = False
        """Whether the script's own thread calls `read`, because only it may read the device's instants."""
        self._error: Exception | None = None  # the first error in the thread
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samestep-clock", daemon=True)
        self._thread.start()

    def read(self) -> None:
        """Compute new steps, and read the instants that have passed; never during a graph capture."""
        with self._reading:
            self._read_log()
            self._read_instants()

    def close(self, *, waits: bool) -> None:
        """Write all remaining steps.

        Args:
            waits: whether to wait for the device to reach the end of the steps. After an error it may never
                do so, or refuse every call; steps whose instants have not passed are then left out.

        Raises:
            Exception: the thread had this error.
        """
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._read_log()
        with suppress(RuntimeError):
            if waits and self._steps:
                self._reader.instants.wait(self._steps[-1].end)
            self._read_instants()
        self._write()

    def _read_log(self) -> None:
        for step in self._reader.read():
            if step is not None:
                self._steps.append(step)
                continue
            with self._writing:
                self._steps.clear()
                self._lines.clear()
                self._sink.forget_steps()

    def _read_instants(self) -> None:
        instants = self._reader.instants
        while self._steps and instants.has_passed(self._steps[0].end):
            self._lines.append(self._steps.popleft().line(instants, self._contention))

    def _run(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._process_log()

    def _process_log(self) -> None:
        try:
            with self._reading:
                self._read_log()
                if not self.of_device:
                    self._read_instants()
            if self._lines:
                self._write()
        except Exception as error:  # noqa: BLE001 - raised by `close`: until then the log must not grow
            self._error = self._error or error

    def _write(self) -> None:
        with self._writing:
            if not self._has_begun:
                self._begin()
                self._has_begun = True
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if lines:
                self._sink.write(lines)
