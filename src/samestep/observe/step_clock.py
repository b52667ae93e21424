"""Measures how long each step of an unmodified script takes, and each phase of it: the step clock.

The clock receives the events of the training loop (`samestep.hooks.training_events`) and of all communication
(`communication`), and logs each event with its time. It makes no rank wait for another, and waits for no
device: a thread computes the steps from the log (`step_reader`) and writes them.

The instants of a device are read on the script's own thread, once they have passed: a query from another
thread would invalidate a CUDA graph that is being captured.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from os import getpid
from threading import get_ident
from typing import Any, Protocol
from weakref import WeakSet, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from samestep.base.step_phases import OPTIMIZER, OTHER
from samestep.hooks import declarations, module_parts
from samestep.hooks.backward import GraphEnd
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.training_events import Listener, OnExit, subscribed, uncompiled
from samestep.observe.clock_file import ClockOptions
from samestep.observe.communication import (
    COLLECTIVES,
    INLINE,
    DdpInfo,
    ModelInfo,
    ModelRegistry,
    communication_observed,
    is_python_thread,
)
from samestep.observe.instants import (
    ClockedStep,
    ContentionEstimator,
    DeviceInstants,
    HostInstants,
    Instants,
    ThreadCpuClock,
    is_captured,
    is_sampled,
    thread_cpu_clock,
)
from samestep.observe.sample_count import MAX_BATCHES, LoaderHook, size_of
from samestep.observe.step_reader import CpuInstant, Log, StepReader
from samestep.parallel.gradients.synchronizer import GradientSynchronizer

MAX_CYCLE = 100
"""Maximum steps of one optimizer in a cycle; another that steps later is in no cycle with it."""


class OptimizerCycle:
    """Infers the order in which optimizers step, and infers it again when that changes.

    ::

        A A A A          each step is a cycle
        D G D G D G      G ends a cycle, once D has stepped again
        D D D G D D D G  the same
        A A A B B B A A  B replaces A, once it has stepped twice; then A replaces B
        D G D G D D D D  D is alone, once it has stepped more than twice as often as in any cycle with G
    """

    def __init__(self) -> None:
        self._known: WeakSet[Optimizer] = WeakSet()  # the optimizers of the current cycle order
        self._steps: Counter[int] = Counter()
        """Steps of each optimizer in the current cycle, by id; of a single optimizer, since it is single."""
        self._most: Counter[int] = Counter()  # maximum steps of each optimizer in any cycle of several
        self._before: int | None = None
        self._last: int | None = None  # id of the optimizer that ends a cycle; None while unknown
        self._ended = 0
        self._single: ref[Optimizer] | None = None
        """The optimizer whose every step is a cycle, if the last step was its own."""
        self.restarts = False  # whether the last step showed that all cycles so far were only parts of cycles

    def ends_cycle(self, optimizer: Optimizer) -> bool:
        """Record that an optimizer has stepped; return whether this ends a cycle."""
        this = id(optimizer)
        if self._single is not None and self._single() is optimizer:  # as in most scripts, in each step
            self._steps[this] += 1
            self._ended += 1
            self.restarts = False
            return True
        self._single, self.restarts = None, False
        if optimizer not in self._known:
            self._last = None if self._known else this
            self._known.add(optimizer)
        elif self._last is None:
            self._infer_last(optimizer)
        elif this != self._last and self._steps[this] >= min(2 * self._most[this], MAX_CYCLE):
            self._last = self._before
            self._keep({*self._steps})
        self._steps[this] += 1
        self._before = this
        if this != self._last:
            return False
        self._ended += 1
        if len(self._known) > 1:
            self._most |= self._steps
            self._steps.clear()
        else:
            self._single = ref(optimizer)
        return True

    def _infer_last(self, optimizer: Optimizer) -> None:
        """Set which optimizer ends a cycle: after a new one, a known one steps again."""
        self._last = self._before
        if self._before == id(optimizer):
            self._keep({id(optimizer)})
        else:
            self._most |= self._steps
            self._steps.clear()
            self.restarts = self._ended <= MAX_CYCLE

    def _keep(self, ids: set[int]) -> None:
        """Remove all other optimizers from the order; they do not step again, or count as new."""
        self._known = WeakSet(optimizer for optimizer in self._known if id(optimizer) in ids)
        self._steps.clear()


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


_BY_HAND = "by hand"
_WITHOUT_QUEUE = ("cpu", "meta")
"""Devices without a queue of kernels: an operation has ended when its call returns."""


class ScriptClock(Listener):
    """Clocks the steps of one rank of a script, in the one thread that trains.

    The first step begins with the first call of a model, whose device is the run's. If that is the CPU, the
    first training call on an accelerator replaces the device, until a step has been recorded.

    Args:
        sink: receives the steps.
        clocking: how many steps are recorded.
        stop: ends this process once that many steps have been recorded.
        loaders: number of workers that each load a shard of the epoch.
        samples_per_epoch: None computes it from what the loaders read.
    """

    def __init__(
        self,
        sink: StepSink,
        clocking: ClockOptions,
        *,
        stop: Callable[[], None],
        loaders: int = 1,
        samples_per_epoch: int | None = None,
    ) -> None:
        self._sink, self._clocking, self._stop = sink, clocking, stop
        self._loaders, self._samples_per_epoch = loaders, samples_per_epoch
        self.thread: tuple[int, int] = getpid(), get_ident()
        self._device = torch.device("cpu")
        self._instants: Instants = HostInstants()
        self._now: Callable[[], Any] = self._instants.now
        self._cpu_clock: ThreadCpuClock | None = None
        self._log: Log = []
        self._reader = StepReader(self._log)
        self.samples = self._reader.samples  # samples of all calls of models; complete after `end`
        self._writer: StepWriter | None = None  # created by the first call of a model
        self._cycle, self._models = OptimizerCycle(), ModelRegistry(self._note_copy, self._note_copy_end)
        self._loader_hook = LoaderHook(self._note_batch)
        self._early: deque[tuple[int | None, int]] = deque(maxlen=MAX_BATCHES + 1)
        """Batches loaded before the first step; one above the maximum, so that `LoadedSamples` notices."""
        self._loader: DataLoader[Any] | None = None
        self._trained_loader: DataLoader[Any] | None = None
        """The loader of the last batch, or whose iteration began since, now and at the last training call."""
        self._by_data: WeakValueDictionary[int, DataLoader[Any]] = WeakValueDictionary()
        """The loader that has last read each data set, by the id of the data set."""
        self._last_module: ref[nn.Module] | None = None
        self._model: ModelInfo | None = None  # the model of the last training call
        self._steps = 0
        self._is_started = self._is_recording = self._has_ended = False
        """Whether the first step has begun, whether any step has been recorded, whether recording is over."""
        self._has_trained = self._has_optimizer = self._is_updating = False
        self._is_in_backward = self._is_graph_done = self._is_communicating = False
        self._may_overlap = False
        """Whether a backward of this step communicates; `StepReader` decides whether that overlapped."""
        self._overlapped_steps = 0  # number of steps in which a backward communicated
        self._sync = self._backend = ""
        self._uses_shared_memory = False
        """Whether the last gradient all-reduce of a synchronizer used the shared memory of one host."""
        self._graph_end = GraphEnd(self._note_graph_end)
        self._load_context = OnExit(self._note_load_end)
        self._backward_context = OnExit(self._note_backward_end)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Clock the script for the duration of a block."""
        with ExitStack() as stack:
            stack.callback(self._models.remove_hooks)
            stack.enter_context(uncompiled(ScriptClock))
            stack.enter_context(subscribed(self))
            stack.enter_context(self._loader_hook.attached())
            stack.enter_context(attached(declarations.NEW_OPTIMIZER, wrapping(self._note_optimizer)))
            stack.enter_context(attached(declarations.NEW_PASS, wrapping(self._note_loader)))
            stack.enter_context(
                communication_observed(self._communicate, self._communicating, self._note_gradients)
            )
            if torch.accelerator.is_available():
                stack.enter_context(attached(declarations.MOVED, wrapping(self._note_move)))
                stack.enter_context(attached(declarations.MOVED_TO_CUDA, wrapping(self._note_move)))
            yield

    def begin(self) -> None:
        """Begin the first step now, on the CPU until a model or a loss is on an accelerator."""
        self._start_on(self._device, trains=False)

    def end(self, ended: str, message: str = "") -> None:
        """Record how the script ended, unless that has been recorded.

        `ended` is as in `ClockFile.end`; after an ``error`` no device is waited for.
        """
        if self._has_ended or getpid() != self.thread[0]:
            return
        self._has_ended = True
        if self._writer is None:
            self._write_header()
        else:
            self._writer.close(waits=not ended.startswith("error"))
        samples = self._samples_per_epoch
        loaded = (
            None if self._trained_loader is None else self._reader.samples_per_epoch(self._trained_loader)
        )
        if samples is None and loaded is not None:
            samples = loaded * self._loaders
        self._sink.end(ended, message, device=self._device, made=self._steps, samples_per_epoch=samples)

    def accepts(self, *, trains: bool = False) -> bool:
        """See `Listener.accepts`; the events of threads and processes that do not train are not accepted."""
        if self.thread == (getpid(), get_ident()):
            return True
        if trains and not self._has_trained and getpid() == self.thread[0]:
            # The script trains in another thread than its main one.
            self.thread = getpid(), get_ident()
            self._is_started = self._is_communicating = False
            self._loader_hook.follow()
            self._early.clear()
            self._log += StepReader.begin_thread, None, ()
            return True
        return trains and self._is_backward_thread()

    def _is_backward_thread(self) -> bool:
        """Return whether this is autograd's thread of an accelerator, inside a backward."""
        return self._is_in_backward and self._device.type != "cpu" and not is_python_thread()

    def call(
        self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """See `Listener.call`."""
        if not (self._is_started and self._is_recording):
            device = next(module_parts.parameters(module)).device
            if is_captured(device):
                return None
            self._start_on(device, trains=is_training)
        elif self._instants.of_device and is_captured(self._device):
            return None
        if self._is_in_backward:  # activation checkpointing recomputes the forward
            return None
        if not is_training:
            self._note_other_call(module, inputs)
            return None
        if self._last_module is None or self._last_module() is not module:
            self._last_module, self._model = (
                ref(module),
                self._models.of(module, on_host=self._device.type == "cpu"),
            )
            if not self._sync or self._sync == _BY_HAND:
                self._sync = self._model.sync or self._sync
        assert self._model is not None
        self._trained_loader = self._loader
        ddps: tuple[DdpInfo, ...] = ()
        for ddp in self._model.ddps:
            wrapper = ddp.model()
            if wrapper is not None and wrapper.require_backward_grad_sync:
                ddps += (ddp,)
                self._may_overlap = True
        rows, elements = size_of(inputs)
        self._log += StepReader.call, self._now(), (self._model, rows, elements, ddps)
        return None

    def _note_other_call(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        rows, elements = size_of(inputs)
        if torch.is_grad_enabled():
            size = rows, elements
            self._log += StepReader.call_in_evaluation, self._now(), size
        else:
            evaluated = None if module.training else id(module)
            self._log += StepReader.call_without_gradients, None, (rows, evaluated)

    def _note_copy(self, *_: object) -> None:
        if self._is_in_backward:
            self._log += StepReader.copy, self._now(), ()

    def _note_copy_end(self, *_: object) -> None:
        if self._is_in_backward:
            self._log += StepReader.copy_end, self._now(), ()

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any] | None:
        """See `Listener.backward`."""
        self._has_trained = True
        if not self._is_started:
            return None
        if losses and not self._is_recording:
            self._start_on(losses[0].device, trains=True)
        if self._models.unmeasured:
            self._models.measure()
        self._log += StepReader.backward, self._now(), ()
        self._is_in_backward, self._is_graph_done = True, False
        if self._backend or c10d.is_initialized():
            self._graph_end.follow(losses)
        return self._backward_context

    def _note_backward_end(self) -> None:
        self._is_in_backward = False
        self._graph_end.remove_hook()
        now = self._now()
        self._log += StepReader.backward_end, now, ()
        if not self._has_optimizer:
            self._end_step(now)

    def loading(self) -> AbstractContextManager[Any] | None:
        """See `Listener.loading`."""
        if not self._is_started or self.thread != (getpid(), get_ident()):
            return None  # another thread may read a loader
        is_nested = self.is_in_call or self._is_in_backward
        self._log += StepReader.load_nested if is_nested else StepReader.load, self._now(), ()
        return self._load_context

    def _note_load_end(self) -> None:
        # Another thread may have begun to train while this one was loading.
        if self._is_started and self.thread == (getpid(), get_ident()):
            self._log += StepReader.load_end, self._now(), ()

    def _note_batch(self, samples: int | None, data: int) -> None:
        if self.thread[0] != getpid():
            return
        self._loader = self._by_data.get(data, self._loader)  # again, after an evaluation within its pass
        if self._is_started:
            self._log += StepReader.batch, None, (samples, data)
        else:
            self._early.append((samples, data))

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        del optimizer
        self._is_updating = self._has_trained = self._has_optimizer = True
        if self._is_started:
            self._log += StepReader.optimizer, self._now(), ()

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        self._is_updating = False
        if not self._is_started:
            return
        now = self._now()
        ends = self._cycle.ends_cycle(optimizer)
        if self._cycle.restarts:
            self._steps = 0
            self._log += StepReader.restart, None, ()
        if ends:
            self._end_step(now)
        self._log += StepReader.optimizer_end, now, ()

    def _start_on(self, device: torch.device, *, trains: bool) -> None:
        """Begin the first step, with the instants of the device that a model was called on."""
        has_queue = device.type not in _WITHOUT_QUEUE
        replaces_device = trains and has_queue and not self._instants.of_device and not self._is_recording
        if self._is_started and not replaces_device:
            return
        if has_queue:
            self._device, self._instants = device, DeviceInstants(device)
        self._cpu_clock = None if has_queue else thread_cpu_clock()
        self._now, self._steps, self._is_started = self._instants.now, 0, True
        self._writer = self._writer or StepWriter(self._sink, self._reader, self._write_header)
        self._writer.of_device = has_queue
        phase = OPTIMIZER if self._is_updating else OTHER
        self._log += StepReader.begin, self._now(), (self._instants, phase)
        while self._early:
            self._log += StepReader.batch, None, self._early.popleft()

    def _instant_and_cpu(self) -> CpuInstant:
        assert self._cpu_clock is not None
        return CpuInstant(self._instants.now(), self._cpu_clock())

    def _end_step(self, now: Any) -> None:
        if self._instants.of_device and is_captured(self._device):
            return
        if not self._backend:
            self._read_backend()
        warm_up, wanted = self._clocking.warm_up, self._clocking.steps
        number = self._steps if self._steps >= warm_up else None
        self._overlapped_steps += self._may_overlap
        self._may_overlap = False
        reads_cpu = (
            self._cpu_clock is not None
            and self._overlapped_steps > 0
            and is_sampled(self._overlapped_steps - warm_up)
        )
        self._log += StepReader.end_step, now, (number,)
        self._now = self._instant_and_cpu if reads_cpu else self._instants.now
        if reads_cpu:
            self._log += StepReader.begin_readings, self._now(), ()
        self._steps += 1
        self._is_recording |= number is not None
        if self._instants.of_device:
            assert self._writer is not None
            self._writer.read()
        if wanted is not None and self._steps == warm_up + wanted:
            self.end("steps")
            self._stop()

    def _note_graph_end(self) -> None:
        if self._is_in_backward:
            self._is_graph_done = True
            self._log += StepReader.graph_end, self._now(), ()

    def _communicate(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._communicating(COLLECTIVES):
            return call(*args, **kwargs)

    def _communicating(self, kind: str) -> AbstractContextManager[None]:
        """Return the context of communication; that inside other communication is not logged again."""
        if not (self._is_started and (self.thread == (getpid(), get_ident()) or self._is_backward_thread())):
            return nullcontext()
        if kind not in (COLLECTIVES, INLINE):
            self._sync = kind
        elif not self._sync:
            self._sync = _BY_HAND
        if self._is_communicating:
            return nullcontext()
        is_inline = kind == INLINE
        self._may_overlap |= self._is_in_backward and not (self._is_graph_done or is_inline)
        self._is_communicating = True
        self._log += StepReader.communicate_inline if is_inline else StepReader.communicate, self._now(), ()
        return OnExit(partial(self._note_communication_end, self.thread))

    def _note_communication_end(self, thread: tuple[int, int]) -> None:
        if self.thread is thread:  # no other thread has begun to train during the call
            self._is_communicating = False
            self._log += StepReader.communicate_end, self._now(), ()

    def _note_gradients(self, synchronizer: GradientSynchronizer) -> None:
        self._uses_shared_memory = synchronizer.is_in_memory
        if self._is_started and self.thread[0] == getpid():
            self._log += StepReader.gradients, None, (synchronizer.gradient_bytes,)

    def _note_move(self, original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_logged = self._is_started and tensor.is_cpu and not self.is_in_call
        if not is_logged or self.thread != (getpid(), get_ident()):
            return original(tensor, *args, **kwargs)
        self._log += StepReader.move, self._now(), ()
        moved = original(tensor, *args, **kwargs)
        if not moved.is_cpu:
            self._log += StepReader.move_end, self._now(), ()
        return moved

    def _note_loader(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        self._loader = self._by_data[id(loader.dataset)] = loader
        with self.loading() or nullcontext():
            return original(loader)

    def _note_optimizer(
        self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> None:
        original(optimizer, *args, **kwargs)
        self._has_optimizer = True

    def _read_backend(self) -> None:
        """Read the back end while there is a process group: a script may destroy it before the header."""
        if not self._backend and c10d.is_initialized():
            by_device = dict(entry.split(":") for entry in c10d.get_backend_config().split(","))
            self._backend = by_device.get(self._device.type, "")

    def _write_header(self) -> None:
        self._read_backend()
        backend = "shared memory" if self._uses_shared_memory else self._backend
        self._sink.header(device=self._device, backend=backend, sync=self._sync)
