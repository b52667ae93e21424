"""The step clock of a script that somebody else wrote: how long each step took, and each phase of it.

It hangs on what every training loop passes (`samestep.watch.events`), and on all that ranks exchange
(`samestep.watch.exchanges`), and notes of each that it was, and when; what that makes of a step is found out
later (`samestep.watch.replay`). No rank waits for another because of it, and nothing waits for a device.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from os import getpid
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from samestep.base.phases import OPTIMIZER, OTHER
from samestep.measure.clock_file import ClockFile, ClockOptions
from samestep.measure.instants import DeviceInstants, HostInstants, Instants, is_captured
from samestep.replicas.synchroniser import Synchroniser
from samestep.watch.events import Listener, heard_by, redirected
from samestep.watch.exchanges import COLLECTIVES, IN_MEMORY, exchanges_made_by
from samestep.watch.graph_end import GraphEnd
from samestep.watch.loaded import MOST_BATCHES, Batches
from samestep.watch.models import Model, Models, Replica
from samestep.watch.notes import Notes
from samestep.watch.phases import Then
from samestep.watch.replay import Did, Log, Replay, Told
from samestep.watch.samples import Size, size_of
from samestep.watch.stolen import ProcessorClock, is_to_be_read, processor_clock
from samestep.watch.turns import Turns
from samestep.watch.uncompiled import uncompiled

_BY_HAND = "by hand"
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
        clocking: ClockOptions,
        *,
        stop: Callable[[], None],
        own: Callable[[int], int] = lambda samples: samples,
        loaders: int = 1,
        samples_per_epoch: int | None = None,
    ) -> None:
        self._file, self._clocking, self._stop = file, clocking, stop
        self._own, self._loaders, self._samples_per_epoch = own, loaders, samples_per_epoch
        self.place: tuple[int, int] = getpid(), get_ident()
        self._device = torch.device("cpu")
        self._instants: Instants[Any] = HostInstants()
        self._now: Callable[[], Any] = self._instants.now
        self._processor: ProcessorClock | None = None
        self._log: Log = []
        self._replay = Replay(self._log)
        self._notes: Notes | None = None
        """Begun with the first call of a model."""
        self._turns, self._models = Turns(), Models(self._before_copy, self._after_copy)
        self._batches = Batches(self._gave)
        self._early: deque[tuple[int | None, int]] = deque(maxlen=MOST_BATCHES + 1)
        """Batches that came before a step was under way; by one too many `Loaded` knows of more."""
        self._loader: DataLoader[Any] | None = None
        self._learnt: DataLoader[Any] | None = None
        """The loader that was begun last; and by the time that something was learnt last."""
        self._last: ref[nn.Module] | None = None
        self._model: Model | None = None
        """What was called last to learn, and what is known of it."""
        self._steps = 0
        self._is_begun = self._is_taking = self._is_over = False
        """Whether a step is under way; whether one was taken down; whether no more are."""
        self._has_learnt = self._has_optimizer = self._is_updating = False
        self._is_in_backward = self._is_at_end_of_graph = self._is_exchanging = False
        self._may_hide = False
        """Whether a backward of this step exchanges; `Replay` says whether it hid that."""
        self._hiding = 0
        """Steps in which one did."""
        self._sync = self._backend = ""
        self._is_in_memory = False
        """Whether the last gradients that a synchroniser exchanged went through the memory of a host."""
        self._graph_end = GraphEnd(self._only_exchange_is_left)
        self._fetching, self._differentiating = Then(self._after_loading), Then(self._after_backward)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the script is clocked."""
        with ExitStack() as stack:
            stack.callback(self._models.leave)
            stack.enter_context(uncompiled(ScriptClock))
            stack.enter_context(heard_by(self))
            stack.enter_context(self._batches.attached())
            stack.enter_context(redirected(Optimizer, "__init__", self._make_optimizer))
            stack.enter_context(redirected(DataLoader, "__iter__", self._iterate))
            stack.enter_context(exchanges_made_by(self._exchange, self._sent))
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
        samples = self._samples_per_epoch
        own = None if self._learnt is None else self._replay.samples_per_epoch(self._learnt)
        if samples is None and own is not None:
            samples = own * self._loaders
        self._file.end(ended, message, device=self._device, made=self._steps, samples_per_epoch=samples)

    def hears(self, *, learns: bool = False) -> bool:
        """See `Listener.hears`: others load, or look, beside the one that trains, as forked processes do."""
        if self.place == (getpid(), get_ident()):
            return True
        if learns and not self._has_learnt and getpid() == self.place[0]:
            # The script trains in a thread of its own.
            self.place = getpid(), get_ident()
            self._is_begun = self._is_exchanging = False
            self._batches.follow()
            self._early.clear()
            self._log += Did.FOLLOW, None, ()
            return True
        return learns and self._is_within_backward()

    def _is_within_backward(self) -> bool:
        """Return whether this thread does a part of it: accelerators have one of their own for backward."""
        return self._is_in_backward and self._device.type != "cpu" and not _is_of_python()

    def call(
        self, module: nn.Module, given: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """See `Listener.call`."""
        if not (self._is_begun and self._is_taking):
            device = next(module.parameters()).device
            if is_captured(device):
                return None
            self._begin_on(device, learns=is_training)
        elif self._instants.of_device and is_captured(self._device):
            return None
        if self._is_in_backward:  # it computes again what was not kept
            return None
        if not is_training:
            self._look(module, given)
            return None
        if self._last is None or self._last() is not module:
            self._last, self._model = ref(module), self._models.of(module, on_host=self._device.type == "cpu")
            if not self._sync or self._sync == _BY_HAND:
                self._sync = self._model.sync or self._sync
        assert self._model is not None
        self._learnt = self._loader
        replicas: tuple[Replica, ...] = ()
        for replica in self._model.replicas:
            held = replica.model()
            if held is not None and held.require_backward_grad_sync:
                replicas += (replica,)
                self._may_hide = True
        rows, elements = size_of(given)
        self._log += Did.CALL, self._now(), (self._model, self._own(rows), elements, replicas)
        return None

    def _look(self, module: nn.Module, given: Sequence[Any]) -> None:
        if torch.is_grad_enabled():
            rows, elements = size_of(given)
            self._log += Did.LOOK, self._now(), (None, Size(self._own(rows), elements))
        else:
            self._log += Did.LOOK, None, (None if module.training else id(module), None)

    def _before_copy(self, *_: object) -> None:
        if self._is_in_backward:
            self._log += Did.COPY, self._now(), ()

    def _after_copy(self, *_: object) -> None:
        if self._is_in_backward:
            self._log += Did.COPIED, self._now(), ()

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any] | None:
        """See `Listener.backward`."""
        self._has_learnt = True
        if not self._is_begun:
            return None
        if losses and not self._is_taking:
            self._begin_on(losses[0].device, learns=True)
        self._models.measure()
        self._log += Did.DIFFERENTIATE, self._now(), ()
        self._is_in_backward, self._is_at_end_of_graph = True, False
        if self._backend or c10d.is_initialized():
            self._graph_end.follow(losses)
        return self._differentiating

    def _after_backward(self) -> None:
        self._is_in_backward = False
        self._graph_end.leave()
        now = self._now()
        self._log += Did.DIFFERENTIATED, now, ()
        if not self._has_optimizer:
            self._end_step(now)

    def loading(self) -> AbstractContextManager[Any] | None:
        """See `Listener.loading`."""
        if not self._is_begun or self.place != (getpid(), get_ident()):
            return None  # a loader may be read by another
        is_within = self.is_in_call or self._is_in_backward
        self._log += Did.LOAD_WITHIN if is_within else Did.LOAD, self._now(), ()
        return self._fetching

    def _after_loading(self) -> None:
        # A thread may have begun to train meanwhile.
        if self._is_begun and self.place == (getpid(), get_ident()):
            self._log += Did.LOADED, self._now(), ()

    def _gave(self, samples: int | None, data: int) -> None:
        if self.place[0] != getpid():
            return
        if self._is_begun:
            self._log += Did.GET, None, (samples, data)
        else:
            self._early.append((samples, data))

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        del optimizer
        self._is_updating = self._has_learnt = True
        if self._is_begun:
            self._log += Did.UPDATE, self._now(), ()

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        self._is_updating = False
        if not self._is_begun:
            return
        now = self._now()
        ends = self._turns.ends_with(optimizer)
        if self._turns.begins_anew:
            self._steps = 0
            self._log += Did.FORGET, None, ()
        if ends:
            self._end_step(now)
        self._log += Did.UPDATED, now, ()

    def _begin_on(self, device: torch.device, *, learns: bool) -> None:
        """Begin, by the moments of a device that something was called on."""
        has_queue = device.type not in _WITHOUT_QUEUE
        is_elsewhere = learns and has_queue and not self._instants.of_device and not self._is_taking
        if self._is_begun and not is_elsewhere:
            return
        if has_queue:
            self._device, self._instants = device, DeviceInstants(device)
        self._processor = None if has_queue else processor_clock()
        self._now, self._steps, self._is_begun = self._instants.now, 0, True
        self._notes = self._notes or Notes(self._file, self._replay, self._write_header)
        self._notes.of_device = has_queue
        self._log += Did.BEGIN, self._now(), (self._instants, OPTIMIZER if self._is_updating else OTHER)
        while self._early:
            self._log += Did.GET, None, self._early.popleft()

    def _told(self) -> Told:
        assert self._processor is not None
        return Told(self._instants.now(), self._processor())

    def _end_step(self, now: Any) -> None:
        if self._instants.of_device and is_captured(self._device):
            return
        if not self._backend:
            self._look_at_group()
        warm_up, wanted = self._clocking.warm_up, self._clocking.steps
        number = self._steps if self._steps >= warm_up else None
        self._hiding += self._may_hide
        self._may_hide = False
        asks = self._processor is not None and self._hiding > 0 and is_to_be_read(self._hiding - warm_up)
        self._log += Did.END_STEP, now, (number,)
        self._now = self._told if asks else self._instants.now
        if asks:
            self._log += Did.TELL, self._now(), ()
        self._steps += 1
        self._is_taking |= number is not None
        if self._instants.of_device:
            assert self._notes is not None
            self._notes.read()
        if wanted is not None and self._steps == warm_up + wanted:
            self.end("steps")
            self._stop()

    def _only_exchange_is_left(self) -> None:
        if self._is_in_backward:
            self._is_at_end_of_graph = True
            self._log += Did.END_GRAPH, self._now(), ()

    def _exchange(self, what: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Exchange`; one that is part of another is that one's."""
        if not (self._is_begun and (self.place == (getpid(), get_ident()) or self._is_within_backward())):
            return make(*args, **kwargs)
        if what not in (COLLECTIVES, IN_MEMORY):
            self._sync = what
        elif not self._sync:
            self._sync = _BY_HAND
        if self._is_exchanging:
            return make(*args, **kwargs)
        is_here = what == IN_MEMORY
        self._may_hide |= self._is_in_backward and not (self._is_at_end_of_graph or is_here)
        place, self._is_exchanging = self.place, True
        self._log += Did.EXCHANGE_HERE if is_here else Did.EXCHANGE, self._now(), ()
        try:
            return make(*args, **kwargs)
        finally:
            if self.place is place:  # no other thread has begun to train meanwhile
                self._is_exchanging = False
                self._log += Did.EXCHANGED, self._now(), ()

    def _sent(self, synchroniser: Synchroniser) -> None:
        self._is_in_memory = synchroniser.is_in_memory
        if self._is_begun and self.place[0] == getpid():
            self._log += Did.SEND, None, (synchroniser.gradient_bytes,)

    def _move(self, original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_seen = self._is_begun and tensor.is_cpu and not self.is_in_call
        if not is_seen or self.place != (getpid(), get_ident()):
            return original(tensor, *args, **kwargs)
        self._log += Did.MOVE, self._now(), ()
        moved = original(tensor, *args, **kwargs)
        if not moved.is_cpu:
            self._log += Did.MOVED, self._now(), ()
        return moved

    def _iterate(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        self._loader = loader
        with self.loading() or nullcontext():
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
        carrier = "shared memory" if self._is_in_memory else self._backend
        self._file.header(device=self._device, backend=carrier, sync=self._sync)


def _is_of_python() -> bool:
    """Return whether this thread was begun by Python: those of torch's autograd were not."""
    this = get_ident()
    dummy = threading._DummyThread  # noqa: SLF001 - what becomes of another's that asks who it is
    return any(one.ident == this and not isinstance(one, dummy) for one in threading.enumerate())
