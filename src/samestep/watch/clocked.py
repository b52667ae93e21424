"""The step clock of a script that somebody else wrote: how long each step took, and each phase of it.

It hangs on what every training loop passes (`samestep.watch.events`), and on all that ranks exchange
(`samestep.watch.exchanges`); each changes the phase that the script is in. No rank waits for another because
of it, and nothing waits for a device.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from os import getpid
from threading import get_ident
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from samestep.base.phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER, OTHER, TO_DEVICE
from samestep.measure.clock_file import ClockFile, Clocking
from samestep.measure.instants import DeviceInstants, HostInstants, Instants, is_captured
from samestep.watch.bucketed import time_copies
from samestep.watch.events import Listener, heard_by, redirected
from samestep.watch.exchanges import COLLECTIVES, IN_MEMORY, exchanges_made_by
from samestep.watch.loaded import Loaded
from samestep.watch.notes import Notes
from samestep.watch.phases import Clocked, Phases, Then
from samestep.watch.samples import Samples
from samestep.watch.sent import Sent
from samestep.watch.stolen import is_to_be_read, processor_clock
from samestep.watch.turns import Turns
from samestep.watch.wrapped import Wrappers

_BY_HAND = "by hand"
_NOTHING = nullcontext()
_WITHOUT_QUEUE = ("cpu", "meta")
"""Devices where a thing is over when its code is."""


class ScriptClock(Listener):
    """Clocks what one rank of a script does: what one thread of it does, the one that trains.

    The first step begins with the first call of a model: it tells the device. Where it is the processor, the
    first that learns on an accelerator tells anew, as long as no step is taken down.

    Args:
        file: takes it down.
        clocking: what is wanted.
        stop: ends this process, once as many steps as were wanted are taken down.
        own: returns how many of the samples that a model is called with are this rank's.
        loaders: how many workers have a loader each for their own part of an epoch.
        samples_per_epoch: where that is known; else it is what the loaders read.
    """

    def __init__(
        self,
        file: ClockFile,
        clocking: Clocking,
        *,
        stop: Callable[[], None],
        own: Callable[[int], int] = lambda samples: samples,
        loaders: int = 1,
        samples_per_epoch: int | None = None,
    ) -> None:
        self._file, self._clocking, self._stop, self._loaders = file, clocking, stop, loaders
        self.place: tuple[int, int] = getpid(), get_ident()
        self._has_learnt = False
        self._device = torch.device("cpu")
        self._instants: Instants[Any] = HostInstants()
        self._phases: Phases[Any] | None = None
        self._notes: Notes[Any] | None = None
        """Begun with the first step that is taken down."""
        self._rest = self._loading_from = self._stepping_from = OTHER
        """The phase of what is none of the others; and those that a loader, an optimizer's step came into."""
        self._samples_per_epoch = samples_per_epoch
        self._samples, self._loaded, self._turns = Samples(own), Loaded(), Turns()
        self._sent = Sent()
        self._steps = 0
        self._has_optimizer = self._is_in_call = self._is_in_backward = self._is_over = False
        self._sync = self._backend = ""
        self._hides = False
        """Whether a backward of this step hides an exchange."""
        self._hidden = 0
        """Steps in which one did."""
        self._wrappers = Wrappers()
        self._plain: ref[nn.Module] | None = None
        """What was called last, and is neither a wrapper nor has one."""
        self._bucketed: WeakSet[DistributedDataParallel] = WeakSet()
        """The models whose copies are timed."""
        self._handles: list[RemovableHandle] = []
        self._is_copying = False
        self._hook: Any = None
        """Of the graph that backward goes through."""
        self._calling, self._fetching = Then(self._after_call), Then(self._after_loading)
        self._differentiating = Then(self._after_backward)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the script is clocked."""
        with ExitStack() as stack:
            stack.callback(self._leave_copies)
            stack.enter_context(heard_by(self))
            stack.enter_context(self._loaded.attached())
            stack.enter_context(redirected(Optimizer, "__init__", self._make_optimizer))
            stack.enter_context(redirected(DataLoader, "__iter__", self._read))
            stack.enter_context(exchanges_made_by(self._exchange, self._sent.finished))
            if torch.accelerator.is_available():
                stack.enter_context(redirected(Tensor, "to", self._move))
                stack.enter_context(redirected(Tensor, "cuda", self._move))
            yield

    def end(self, ended: str, message: str = "") -> None:
        """Take down how the script ended, unless it is known.

        Args:
            ended: see `ClockFile.end`; after an ``error`` no device is waited for.
            message: of the error.
        """
        if self._is_over or getpid() != self.place[0]:
            return
        self._is_over = True
        if self._notes is None:
            self._write_header()
        else:
            self._notes.close(waits=not ended.startswith("error"))
        samples, own = self._samples_per_epoch, self._loaded.samples_per_epoch
        if samples is None and own is not None:
            samples = own * self._loaders
        self._file.end(ended, message, device=self._device, made=self._steps, samples_per_epoch=samples)

    def hears(self, *, learns: bool = False) -> bool:
        """See `Listener.hears`: others load, or look, beside the one that trains, as forked processes do."""
        if self.place == (getpid(), get_ident()):
            return True
        if learns and not self._has_learnt and getpid() == self.place[0]:
            # The script trains in a thread of its own.
            self.place, self._phases = (getpid(), get_ident()), None
            self._loaded.follow()
            return True
        return learns and self._is_within_backward()

    def _is_within_backward(self) -> bool:
        """Return whether this thread does a part of it: accelerators have one of their own for backward."""
        return self._is_in_backward and self._device.type != "cpu" and not _is_of_python()

    def call(
        self, module: nn.Module, given: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any]:
        """See `Listener.call`; forward goes on until backward begins."""
        phases = self._phases
        if phases is None or self._notes is None:
            device = next(module.parameters()).device
            if is_captured(device):
                return _NOTHING
            phases = self._phases_on(device, learns=is_training)
        elif self._instants.of_device and is_captured(self._device):
            return _NOTHING
        if self._is_in_backward:  # it computes again what was not kept
            return _NOTHING
        self._samples.called(module, given, is_training=is_training)
        if is_training:
            self._loaded.learns()
            self._exchanged_by(module)
        if torch.is_grad_enabled():
            phases.switch(FORWARD)
        self._is_in_call = True
        return self._calling

    def _exchanged_by(self, model: nn.Module) -> None:
        """Know that backward will hide the exchange of a model, and what of it is done within backward."""
        if self._plain is not None and self._plain() is model:
            return
        wrapped = self._wrappers.of(model)
        self._plain = None if any(wrapped) else ref(model)
        if not self._sync or self._sync == _BY_HAND:
            self._sync = wrapped.sync or self._sync
        for reference in wrapped.replicas:
            if (replica := reference()) is None:
                continue
            self._hides |= replica.require_backward_grad_sync
            self._sent.called(replica)
            if self._device.type == "cpu" and replica not in self._bucketed:
                self._bucketed.add(replica)
                self._handles += time_copies(replica, self._before_copy, self._after_copy)

    def _before_copy(self) -> None:
        if self._phases is not None and self._phases.phase == BACKWARD:
            self._phases.switch(EXCHANGE)
            self._is_copying = True

    def _after_copy(self) -> None:
        if self._phases is not None and self._is_copying:
            self._is_copying = False
            self._phases.switch(BACKWARD)

    def _leave_copies(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _after_call(self) -> None:
        self._is_in_call = False

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """See `Listener.backward`."""
        self._has_learnt = True
        if self._phases is None:
            return _NOTHING
        phases = self._phases
        if losses and self._notes is None:
            phases = self._phases_on(losses[0].device, learns=True)
        self._samples.differentiated()
        self._sent.differentiated()
        phases.switch(BACKWARD)
        self._is_in_backward = True
        self._hook = self._at_end_of_graph(losses)
        return self._differentiating

    def _after_backward(self) -> None:
        assert self._phases is not None
        self._is_in_backward = self._is_copying = False
        self._phases.switch(self._rest)
        if self._hook is not None:
            self._hook.remove()
        if not self._has_optimizer:
            self._step_done(self._phases)

    def loading(self) -> AbstractContextManager[Any]:
        """See `Listener.loading`."""
        phases = self._phases  # a thread may begin to train meanwhile
        if phases is None or self.place != (getpid(), get_ident()) or phases.phase == DATA:
            return _NOTHING  # a loader may be read by another
        is_within = self._is_in_call or self._is_in_backward or self._samples.learns
        if self._samples.loading():
            self._loaded.evaluates()
        before = phases.switch(DATA)
        self._loading_from = before if is_within else self._rest
        return self._fetching

    def _after_loading(self) -> None:
        # A thread may have begun to train meanwhile.
        if self._phases is not None and self.place == (getpid(), get_ident()):
            self._phases.switch(self._loading_from)

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        del optimizer
        self._rest, self._has_learnt = OPTIMIZER, True
        if self._phases is not None:
            before = self._phases.switch(OPTIMIZER)
            self._stepping_from = before if self._is_in_backward else OTHER

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        self._rest = OTHER
        phases = self._phases
        if phases is None:
            return
        ends = self._turns.ends_with(optimizer)
        if self._turns.begins_anew:
            self._steps = 0
            if self._notes is not None:
                self._notes.forget()
        if ends:
            self._step_done(phases)
        if phases.phase != self._stepping_from:
            phases.switch(self._stepping_from)

    def _phases_on(self, device: torch.device, *, learns: bool) -> Phases[Any]:
        """Return the phases, by the moments of a device that something was called on."""
        has_queue = device.type not in _WITHOUT_QUEUE
        is_elsewhere = learns and has_queue and not self._instants.of_device and self._notes is None
        if self._phases is not None and not is_elsewhere:
            return self._phases
        if has_queue:
            self._device, self._instants = device, DeviceInstants(device)
        self._steps = 0
        self._phases = Phases(self._instants.now, None if has_queue else processor_clock())
        return self._phases

    def _step_done(self, phases: Phases[Any]) -> None:
        if self._instants.of_device and is_captured(self._device):
            phases.switch(self._rest)
            return
        if not self._backend:
            self._look_at_group()
        number, marks = self._steps, phases.cut()
        hides, self._hides = self._hides, False
        self._hidden += hides
        readings = None
        if self._hidden:
            readings = phases.take_readings(then=is_to_be_read(self._hidden - self._clocking.warm_up))
        sent = self._sent.take()
        self._steps += 1
        samples, loaded = self._samples, self._loaded.next_step()
        if number >= self._clocking.warm_up:
            self._notes = self._notes or Notes(self._file, self._instants, self._write_header)
            step: Clocked[Any] = Clocked(
                number,
                marks,
                samples.count,
                samples.evaluated,
                sent,
                hides,
                readings,
                loaded=loaded,
                elements=samples.elements,
            )
            self._notes.add(step)
        samples.next_step()
        wanted = self._clocking.steps
        if wanted is not None and self._steps == self._clocking.warm_up + wanted:
            self.end("steps")
            self._stop()

    def _at_end_of_graph(self, losses: Sequence[Tensor]) -> Any:
        """Have the phase change when backward has come to the end of its graph.

        Autograd calls back in the order in which it was asked to: this one asks first, so that what a
        DistributedDataParallel waits for then comes after it.
        """
        if not (self._backend or c10d.is_initialized()):
            return None
        for loss in losses:
            if loss.grad_fn is not None:
                return loss.grad_fn.register_prehook(self._begun)
        return None

    def _begun(self, _: Sequence[Tensor]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - no public spelling
        engine.queue_callback(self._only_exchange_is_left)

    def _only_exchange_is_left(self) -> None:
        if self._phases is not None:
            self._phases.switch(EXCHANGE)

    def _exchange(self, what: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Exchange`; one that is part of another is that one's."""
        phases = self._phases
        if phases is None or not (self.place == (getpid(), get_ident()) or self._is_within_backward()):
            return make(*args, **kwargs)
        if what not in (COLLECTIVES, IN_MEMORY):
            self._sync = what
        elif not self._sync:
            self._sync = _BY_HAND
        # In memory this thread itself exchanges, and backward stands still.
        self._hides |= phases.phase == BACKWARD and what != IN_MEMORY
        if phases.phase == EXCHANGE:
            return make(*args, **kwargs)
        before = phases.switch(EXCHANGE)
        try:
            return make(*args, **kwargs)
        finally:
            phases.switch(before)

    def _move(self, original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        phases = self._phases
        if phases is None or not tensor.is_cpu or self._is_in_call or self.place != (getpid(), get_ident()):
            return original(tensor, *args, **kwargs)
        phases.mark(phases.phase)
        moved = original(tensor, *args, **kwargs)
        phases.mark(phases.phase if moved.is_cpu else TO_DEVICE)
        return moved

    def _read(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        self._loaded.begins(loader)
        with self.loading():
            return original(loader)

    def _make_optimizer(
        self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> None:
        original(optimizer, *args, **kwargs)
        self._has_optimizer = True

    def _look_at_group(self) -> None:
        """Know what carries exchanges while it is there: a script may end it before anything is written."""
        if not self._backend and c10d.is_initialized():
            by_device = dict(one.split(":") for one in c10d.get_backend_config().split(","))
            self._backend = by_device.get(self._device.type, "")

    def _write_header(self) -> None:
        self._look_at_group()
        carrier = "shared memory" if self._sent.is_in_memory else self._backend
        self._file.header(device=self._device, backend=carrier, sync=self._sync)


def _is_of_python() -> bool:
    """Return whether this thread was begun by Python: those of torch's autograd were not."""
    this = get_ident()
    dummy = threading._DummyThread  # noqa: SLF001 - what becomes of another's that asks who it is
    return any(one.ident == this and not isinstance(one, dummy) for one in threading.enumerate())
