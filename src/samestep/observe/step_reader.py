"""Computes steps from the log of a program's events, which scripts and recipes write alike.

After a model's work each Python function that is called is out of the caches, and takes ten times as long as
in a tight loop. So a clock only appends to a list, and phases, samples and bytes are computed from it here,
outside of the measured calls. An entry is a method of `StepReader`, an instant, and the method's arguments::

    StepReader.backward, instant, (), StepReader.end_step, instant, (7,), ..
"""

from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.data import DataLoader

from samestep.base.step_phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER, OTHER, TO_DEVICE
from samestep.observe.communication import DdpInfo, ModelInfo
from samestep.observe.instants import (
    ClockedStep,
    CpuUse,
    DeviceInstants,
    HostInstants,
    Instants,
    Phases,
)
from samestep.observe.sample_count import LoadedSamples, SampleCounter

Log: TypeAlias = list[Any]
"""The three items of an entry are appended in one operation, because another thread reads the list."""


class CpuInstant(NamedTuple):
    """An instant, and the CPU time that the thread has had until then."""

    instant: Any
    cpu: CpuUse


class StepReader:
    """Computes steps from log entries, in as many parts as they come in.

    Each public method below `read` is an event. Other threads append to the log; entries are removed once
    they have been processed.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._default_phase = self._phase_before_step = OTHER
        """The phase outside of all others, and the phase that the optimizer's step interrupted."""
        self._is_copying = self._overlaps = False
        self.samples, self._loaded = SampleCounter(), LoadedSamples()
        self._unsent: set[DdpInfo] = set()
        """DDP sends the gradients of a model in the first backward after its calls."""
        self._gradient_bytes: int | None = None
        self._are_bytes_known = True
        self._steps: list[ClockedStep | None] = []
        self._phases = Phases(0.0)
        self.begin(HostInstants(), OTHER)

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """See `LoadedSamples.samples_per_epoch`."""
        return self._loaded.samples_per_epoch(loader)

    def read(self) -> list[ClockedStep | None]:
        """Return the steps that have ended since the last call; None: all steps before it are dropped."""
        entries = self._log[:]
        del self._log[: len(entries)]
        for event, instant, details in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
            if type(instant) is CpuInstant:
                self._phases.instant, self._phases.cpu = instant
            else:
                self._phases.instant = instant
            event(self, *details)
        steps, self._steps = self._steps, []
        return steps

    def begin(self, instants: Instants, phase: str) -> None:
        """Begin to clock on a device or in a thread, in a phase; drop the phases of an unfinished step."""
        self.instants, self._default_phase = instants, phase
        self._phases = Phases(self._phases.instant)
        self._phases_before_communication: list[str] = []
        self._phases_before_loading: list[str] = []
        """The phases that loaders interrupted, as a stack."""
        self._is_in_backward = False

    def begin_thread(self) -> None:
        """Another thread trains from now on."""
        self._loaded.clear()

    def marked_step(self, marks: list[Any]) -> None:
        """A loop that marks its phases itself ends a step, see `Phases.cut`."""
        self._steps.append(ClockedStep(0, marks, 0, evaluated=False))

    def call(self, model: ModelInfo, samples: int, elements: int, ddp: Collection[DdpInfo]) -> None:
        """Begin forward, which lasts until backward begins; DDP overlaps communication with that.

        The samples are those of this rank; the next backward synchronizes the gradients of the models in
        `ddp`.
        """
        self._overlaps |= bool(ddp)
        self.samples.trained(model, samples, elements)
        self._loaded.trained()
        self._unsent.update(ddp)
        self._phases.switch(FORWARD)

    def call_in_evaluation(self, samples: int, elements: int) -> None:
        """A model in evaluation mode is called with gradients: a backward may follow."""
        self.samples.called_in_evaluation(samples, elements)
        self._phases.switch(FORWARD)

    def call_without_gradients(self, rows: int, evaluated: int | None) -> None:
        """A model is called without gradients; `evaluated` is its id if it is in evaluation mode."""
        self.samples.called_without_gradients(rows, evaluated)

    def backward(self) -> None:
        """A backward begins."""
        self.samples.began_backward()
        for ddp in self._unsent:
            self.gradients(ddp.gradient_bytes)
        self._unsent.clear()
        self._phases.switch(BACKWARD)
        self._is_in_backward = True

    def graph_end(self) -> None:
        """The autograd graph ends: only communication is left of this backward."""
        self._phases.switch(EXCHANGE)

    def copy(self) -> None:
        """DDP copies a gradient into a bucket."""
        if self._phases.phase == BACKWARD:
            self._phases.switch(EXCHANGE)
            self._is_copying = True

    def copy_end(self) -> None:
        """The copy ends."""
        if self._is_copying:
            self._is_copying = False
            self._phases.switch(BACKWARD)

    def backward_end(self) -> None:
        """The backward ends."""
        self._is_in_backward = self._is_copying = False
        self._phases.switch(self._default_phase)

    def optimizer(self) -> None:
        """An optimizer steps."""
        self._default_phase = OPTIMIZER
        before = self._phases.switch(OPTIMIZER)
        self._phase_before_step = before if self._is_in_backward else OTHER

    def optimizer_end(self) -> None:
        """The optimizer has stepped."""
        self._default_phase = OTHER
        self._phases.switch(self._phase_before_step)

    def end_step(self, number: int | None) -> None:
        """A step ends; its number is None during warm-up."""
        marks, cpu_readings = self._phases.cut()
        samples, loaded = self.samples, self._loaded.next_step()
        if number is not None:
            step = ClockedStep(
                number,
                marks,
                samples.count,
                samples.evaluated,
                self._gradient_bytes if self._are_bytes_known else None,
                self._overlaps,
                cpu_readings,
                loaded=loaded,
                elements=samples.elements,
            )
            self._steps.append(step)
        samples.next_step()
        self._overlaps, self._gradient_bytes, self._are_bytes_known = False, None, True

    def begin_readings(self) -> None:
        """Each instant of the next step is a `CpuInstant`."""
        self._phases.begin_readings()

    def restart(self) -> None:
        """All steps so far were parts of optimizer cycles, and are dropped."""
        self._steps.append(None)

    def load(self, *, is_nested: bool = False) -> None:
        """A batch is requested, perhaps inside a call or a backward."""
        before = self._phases.switch(DATA)
        is_nested |= self.samples.has_trained or before == DATA
        self._phases_before_loading.append(before if is_nested else self._default_phase)
        if before != DATA and self.samples.loading():
            self._loaded.drop_evaluation()

    def load_nested(self) -> None:
        """A batch is requested inside a call or a backward."""
        self.load(is_nested=True)

    def batch(self, samples: int | None, data: int) -> None:
        """A batch was loaded, see `LoadedSamples.add`."""
        self._loaded.add(samples, data)

    def load_end(self) -> None:
        """The request of a batch ends."""
        if self._phases_before_loading:
            self._phases.switch(self._phases_before_loading.pop())

    def communicate(self) -> None:
        """Communication begins, with which backward can overlap."""
        self._overlaps |= self._phases.phase == BACKWARD
        self.communicate_inline()

    def communicate_inline(self) -> None:
        """This thread communicates through shared memory, so backward does not progress meanwhile."""
        self._phases_before_communication.append(self._phases.switch(EXCHANGE))

    def communicate_end(self) -> None:
        """The communication ends."""
        if self._phases_before_communication:  # else it began before the clock did
            self._phases.switch(self._phases_before_communication.pop())

    def gradients(self, size: int | None) -> None:
        """This many bytes of gradients are sent to be averaged; None if unknown."""
        self._are_bytes_known &= size is not None
        self._gradient_bytes = (self._gradient_bytes or 0) + (size or 0)

    def move(self) -> None:
        """A CPU tensor is about to be moved."""
        self._phases.mark(self._phases.phase)

    def move_end(self) -> None:
        """The tensor is on a device now."""
        self._phases.mark(TO_DEVICE)


class LoopClock:
    """Logs the ends of the phases of each step; steps never wait for the device."""

    def __init__(self, instants: Instants) -> None:
        self._instants, self._now = instants, instants.now
        self._log: Log = []
        self._reader = StepReader(self._log)
        self._marks: list[Any] = []

    def start(self) -> None:
        """Begin a step now, and discard an unfinished one."""
        self._marks = [OTHER, self._now()]

    def mark(self, phase: str) -> None:
        """End a phase of `base.step_phases`, which began at the last mark."""
        self._marks += phase, self._now()

    def step_done(self) -> None:
        """End a step at its last mark, and begin the next one there."""
        self._log += StepReader.marked_step, None, (self._marks,)
        self._marks = self._marks[-2:]

    def drain(self) -> list[dict[str, float]]:
        """Return the seconds of each phase, of the steps since the last call; waits for the device."""
        steps = [step for step in self._reader.read() if step is not None]
        if steps:
            self._instants.wait(steps[-1].end)
        return [step.seconds(self._instants) for step in steps]


def loop_clock(device: torch.device) -> LoopClock:
    """Return a clock of steps on `device`."""
    return LoopClock(HostInstants() if device.type == "cpu" else DeviceInstants(device))
