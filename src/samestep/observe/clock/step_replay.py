"""Computes the steps of a script from the log of its events.

After a model's work each Python function that is called is out of the caches, and takes ten times as long as
in a tight loop. So the hooks only append to a list, and phases, samples and bytes are computed from it here,
outside of the measured calls::

    event, instant, details, event, instant, details, ..
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from torch.utils.data import DataLoader

from samestep.base.step_phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER, OTHER, TO_DEVICE
from samestep.observe.clock.bytes_sent import GradientBytes
from samestep.observe.clock.cpu_contention import CpuUse
from samestep.observe.clock.instants import HostInstants, Instants
from samestep.observe.clock.loaded_samples import LoadedSamples
from samestep.observe.clock.model_gradients import DdpInfo, ModelInfo
from samestep.observe.clock.phase_instants import ClockedStep, Phases
from samestep.observe.clock.sample_count import SampleCounter, Size

Log: TypeAlias = list[Any]
"""An `Event`, an instant or `CpuInstant`, and a tuple of details per entry; the three are appended in one
operation, because another thread reads the list."""


class Event:
    """The kinds of log entries, each with its details."""

    BEGIN = "begin"
    """First call on a device or in a thread: its `Instants`, and the current phase."""
    NEW_THREAD = "new thread"
    """Another thread trains from now on."""
    CALL = "call"
    """Training call: `ModelInfo`, samples of this rank, elements in them, the DDP models it synchronizes."""
    OTHER_CALL = "other call"
    """Any other call: the model's id if it only evaluates; `Size` if a backward may follow."""
    BACKWARD = "backward"
    GRAPH_END = "graph end"
    """End of the autograd graph: only communication is left of this backward."""
    COPY = "copy"
    """DDP copies a gradient into a bucket."""
    COPY_END = "copy end"
    BACKWARD_END = "backward end"
    OPTIMIZER = "optimizer"
    """An optimizer steps."""
    OPTIMIZER_END = "optimizer end"
    END_STEP = "end step"
    """The step's number; None during warm-up."""
    READ_CPU = "read cpu"
    """Each instant of the next step is a `CpuInstant`."""
    RESTART = "restart"
    """All steps so far were parts of optimizer cycles, and are dropped."""
    LOAD = "load"
    """A batch is requested."""
    LOAD_NESTED = "load nested"
    """A batch is requested inside a call or a backward."""
    BATCH = "batch"
    """A batch was loaded: its samples, and the data set's id."""
    LOAD_END = "load end"
    COMMUNICATE = "communicate"
    COMMUNICATE_INLINE = "communicate inline"
    """This thread communicates through shared memory, so backward does not progress meanwhile."""
    COMMUNICATE_END = "communicate end"
    GRADIENTS = "gradients"
    """Bytes of synchronized gradients; None if unknown."""
    MOVE = "move"
    """A CPU tensor is moved."""
    MOVE_END = "move end"
    """The tensor is on a device now."""


class CpuInstant(NamedTuple):
    """An instant, and the CPU time that the thread has had until then."""

    instant: Any
    cpu: CpuUse


class Replay:
    """Computes steps from log entries, in as many parts as they come in.

    Args:
        log: other threads append to it; entries are removed once they have been processed.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._instant: Any = 0.0
        self._cpu = CpuUse()
        self.instants: Instants[Any] = HostInstants()
        self._phases = self._new_phases()
        self._default_phase = self._phase_before_step = OTHER
        """The phase outside of all others, and the phase that the optimizer's step interrupted."""
        self._phases_before_communication: list[str] = []
        self._phases_before_loading: list[str] = []
        """The phases that loaders interrupted, as a stack."""
        self._is_in_backward = self._is_copying = self._overlaps = False
        self._samples, self._loaded, self._gradient_bytes = SampleCounter(), LoadedSamples(), GradientBytes()
        self._steps: list[ClockedStep[Any] | None] = []
        self._handlers: dict[str, Callable[..., None]] = {
            Event.BEGIN: self._begin,
            Event.NEW_THREAD: self._loaded.clear,
            Event.CALL: self._call,
            Event.OTHER_CALL: self._note_other_call,
            Event.BACKWARD: self._begin_backward,
            Event.GRAPH_END: self._end_graph,
            Event.COPY: self._begin_copy,
            Event.COPY_END: self._end_copy,
            Event.BACKWARD_END: self._end_backward,
            Event.OPTIMIZER: self._begin_optimizer,
            Event.OPTIMIZER_END: self._end_optimizer,
            Event.END_STEP: self._end_step,
            Event.READ_CPU: self._begin_readings,
            Event.RESTART: self._restart,
            Event.LOAD: self._begin_load,
            Event.LOAD_NESTED: self._begin_nested_load,
            Event.BATCH: self._loaded.add,
            Event.LOAD_END: self._end_load,
            Event.COMMUNICATE: self._communicate,
            Event.COMMUNICATE_INLINE: self._communicate_inline,
            Event.COMMUNICATE_END: self._end_communication,
            Event.GRADIENTS: self._gradient_bytes.add,
            Event.MOVE: self._begin_move,
            Event.MOVE_END: self._end_move,
        }

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """See `LoadedSamples.samples_per_epoch`."""
        return self._loaded.samples_per_epoch(loader)

    def read(self) -> list[ClockedStep[Any] | None]:
        """Return the steps that have ended since the last call; None: all steps before it are dropped."""
        entries = self._log[:]
        del self._log[: len(entries)]
        for event, instant, details in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
            if type(instant) is CpuInstant:
                self._instant, self._cpu = instant
            else:
                self._instant = instant
            self._handlers[event](*details)
        steps, self._steps = self._steps, []
        return steps

    def _new_phases(self) -> Phases[Any]:
        return Phases(lambda: self._instant, lambda: self._cpu)

    def _begin(self, instants: Instants[Any], phase: str) -> None:
        self.instants, self._default_phase = instants, phase
        self._phases = self._new_phases()
        self._phases_before_communication, self._phases_before_loading = [], []
        self._is_in_backward = False

    def _call(self, model: ModelInfo, samples: int, elements: int, ddp: Collection[DdpInfo]) -> None:
        """Begin forward, which lasts until backward begins; DDP overlaps communication with that."""
        self._overlaps |= bool(ddp)
        self._samples.trained(model, Size(samples, elements))
        self._loaded.trained()
        self._gradient_bytes.called(ddp)
        self._phases.switch(FORWARD)

    def _note_other_call(self, evaluated: int | None, size: Size | None) -> None:
        self._samples.called_otherwise(evaluated, size)
        if size is not None:
            self._phases.switch(FORWARD)

    def _begin_backward(self) -> None:
        self._samples.began_backward()
        self._gradient_bytes.began_backward()
        self._phases.switch(BACKWARD)
        self._is_in_backward = True

    def _end_graph(self) -> None:
        self._phases.switch(EXCHANGE)

    def _begin_copy(self) -> None:
        if self._phases.phase == BACKWARD:
            self._phases.switch(EXCHANGE)
            self._is_copying = True

    def _end_copy(self) -> None:
        if self._is_copying:
            self._is_copying = False
            self._phases.switch(BACKWARD)

    def _end_backward(self) -> None:
        self._is_in_backward = self._is_copying = False
        self._phases.switch(self._default_phase)

    def _begin_optimizer(self) -> None:
        self._default_phase = OPTIMIZER
        before = self._phases.switch(OPTIMIZER)
        self._phase_before_step = before if self._is_in_backward else OTHER

    def _end_optimizer(self) -> None:
        self._default_phase = OTHER
        self._phases.switch(self._phase_before_step)

    def _end_step(self, number: int | None) -> None:
        marks, cpu_readings = self._phases.cut(), self._phases.take_readings()
        samples, gradient_bytes, loaded = self._samples, self._gradient_bytes.take(), self._loaded.next_step()
        if number is not None:
            step: ClockedStep[Any] = ClockedStep(
                number,
                marks,
                samples.count,
                samples.evaluated,
                gradient_bytes,
                self._overlaps,
                cpu_readings,
                loaded=loaded,
                elements=samples.elements,
            )
            self._steps.append(step)
        samples.next_step()
        self._overlaps = False

    def _begin_readings(self) -> None:
        self._phases.begin_readings()

    def _restart(self) -> None:
        self._steps.append(None)

    def _begin_load(self) -> None:
        self._enter_loading(is_nested=self._samples.has_trained)

    def _begin_nested_load(self) -> None:
        self._enter_loading(is_nested=True)

    def _enter_loading(self, *, is_nested: bool) -> None:
        before = self._phases.switch(DATA)
        self._phases_before_loading.append(before if is_nested or before == DATA else self._default_phase)
        if before != DATA and self._samples.loading():
            self._loaded.drop_evaluation()

    def _end_load(self) -> None:
        if self._phases_before_loading:
            self._phases.switch(self._phases_before_loading.pop())

    def _communicate(self) -> None:
        self._overlaps |= self._phases.phase == BACKWARD
        self._communicate_inline()

    def _communicate_inline(self) -> None:
        self._phases_before_communication.append(self._phases.switch(EXCHANGE))

    def _end_communication(self) -> None:
        if self._phases_before_communication:  # else it began before the clock did
            self._phases.switch(self._phases_before_communication.pop())

    def _begin_move(self) -> None:
        self._phases.mark(self._phases.phase)

    def _end_move(self) -> None:
        self._phases.mark(TO_DEVICE)
