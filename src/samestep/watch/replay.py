"""From what a script did, noted as it went, the steps that it made: gone through later, and all at once.

After a model's work each function that is called is out of the caches, and takes ten times as long as in a
loop of its own. So the clock only notes, in a list, and what that means for phases, samples and bytes is
found out here, beside the script::

    what, when, details, what, when, details, ..
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from torch.utils.data import DataLoader

from samestep.base.phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER, OTHER, TO_DEVICE
from samestep.measure.instants import HostInstants, Instants
from samestep.watch.loaded import Loaded
from samestep.watch.models import Model, Replica
from samestep.watch.phases import Clocked, Phases
from samestep.watch.samples import Samples, Size
from samestep.watch.sent import Sent
from samestep.watch.stolen import Processor

Log: TypeAlias = list[Any]
"""Of each entry one of `Did`, a moment or `Told`, and a tuple: added at once, as another thread reads."""


class Did:
    """What is noted, and with which details."""

    BEGIN = "begin"
    """The first call on a device, or in a thread: its `Instants`, and the phase that the script is in."""
    FOLLOW = "follow"
    """Another thread trains from now on."""
    CALL = "call"
    """A model, to learn: `Model`, samples of this rank, numbers in them, the replicas it will exchange."""
    LOOK = "look"
    """A model, otherwise: its id where it only evaluates; `Size` where it may be learnt from yet."""
    DIFFERENTIATE = "differentiate"
    END_GRAPH = "end graph"
    """All that is left of backward is exchange."""
    COPY = "copy"
    """A gradient, to where it is exchanged from."""
    COPIED = "copied"
    DIFFERENTIATED = "differentiated"
    UPDATE = "update"
    """An optimizer steps."""
    UPDATED = "updated"
    END_STEP = "end step"
    """Its number if it is taken down."""
    TELL = "tell"
    """What the thread has of its processor: each moment of the step that begins is `Told`."""
    FORGET = "forget"
    """All steps so far: they were parts of turns."""
    LOAD = "load"
    """A batch."""
    LOAD_WITHIN = "load within"
    """A batch, from within a call or a backward."""
    GET = "get"
    """A batch: its samples, and the data set's id."""
    LOADED = "loaded"
    EXCHANGE = "exchange"
    EXCHANGE_HERE = "exchange here"
    """By this thread itself, in memory: backward stands still."""
    EXCHANGED = "exchanged"
    SEND = "send"
    """Gradients: their bytes; None where nobody knows."""
    MOVE = "move"
    """A tensor of the processor."""
    MOVED = "moved"
    """It is a device's now."""


class Told(NamedTuple):
    """A moment, and what the thread has had of its processor by then."""

    instant: Any
    processor: Processor


class Replay:
    """Goes through what was noted.

    Args:
        log: is added to meanwhile; what was gone through is taken out of it.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._instant: Any = 0.0
        self._had = Processor()
        self.instants: Instants[Any] = HostInstants()
        self._phases = self._new_phases()
        self._rest = self._updating_from = OTHER
        """The phase of what is none of the others; and that which an optimizer's step came into."""
        self._exchanging_from: list[str] = []
        self._loading_from: list[str] = []
        """The phases that loaders came into, one from within the other."""
        self._is_in_backward = self._is_copying = self._hides = False
        self._samples, self._loaded, self._sent = Samples(), Loaded(), Sent()
        self._steps: list[Clocked[Any] | None] = []
        self._ways: dict[str, Callable[..., None]] = {
            Did.BEGIN: self._begin,
            Did.FOLLOW: self._loaded.forget,
            Did.CALL: self._call,
            Did.LOOK: self._look,
            Did.DIFFERENTIATE: self._differentiate,
            Did.END_GRAPH: self._end_graph,
            Did.COPY: self._copy,
            Did.COPIED: self._copied,
            Did.DIFFERENTIATED: self._differentiated,
            Did.UPDATE: self._update,
            Did.UPDATED: self._updated,
            Did.END_STEP: self._end_step,
            Did.TELL: self._begin_readings,
            Did.FORGET: self._forget,
            Did.LOAD: self._load,
            Did.LOAD_WITHIN: self._load_within,
            Did.GET: self._loaded.gave,
            Did.LOADED: self._has_loaded,
            Did.EXCHANGE: self._exchange,
            Did.EXCHANGE_HERE: self._exchange_here,
            Did.EXCHANGED: self._exchanged,
            Did.SEND: self._sent.finished,
            Did.MOVE: self._move,
            Did.MOVED: self._moved,
        }

    def samples_per_epoch(self, loader: DataLoader[Any]) -> int | None:
        """See `Loaded.samples_per_epoch`."""
        return self._loaded.samples_per_epoch(loader)

    def read(self) -> list[Clocked[Any] | None]:
        """Return the steps that have ended since; None where all before it are to be forgotten."""
        entries = self._log[:]
        del self._log[: len(entries)]
        for what, when, details in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
            if type(when) is Told:
                self._instant, self._had = when
            else:
                self._instant = when
            self._ways[what](*details)
        steps, self._steps = self._steps, []
        return steps

    def _new_phases(self) -> Phases[Any]:
        return Phases(lambda: self._instant, lambda: self._had)

    def _begin(self, instants: Instants[Any], rest: str) -> None:
        self.instants, self._rest = instants, rest
        self._phases = self._new_phases()
        self._exchanging_from, self._loading_from = [], []
        self._is_in_backward = False

    def _call(self, model: Model, samples: int, elements: int, replicas: Collection[Replica]) -> None:
        """Forward goes on until backward begins, which will hide the exchange of replicas."""
        self._hides |= bool(replicas)
        self._samples.learns_from(model, Size(samples, elements))
        self._loaded.learns()
        self._sent.called(replicas)
        self._phases.switch(FORWARD)

    def _look(self, evaluated: int | None, size: Size | None) -> None:
        self._samples.looked(evaluated, size)
        if size is not None:
            self._phases.switch(FORWARD)

    def _differentiate(self) -> None:
        self._samples.differentiated()
        self._sent.differentiated()
        self._phases.switch(BACKWARD)
        self._is_in_backward = True

    def _end_graph(self) -> None:
        self._phases.switch(EXCHANGE)

    def _copy(self) -> None:
        if self._phases.phase == BACKWARD:
            self._phases.switch(EXCHANGE)
            self._is_copying = True

    def _copied(self) -> None:
        if self._is_copying:
            self._is_copying = False
            self._phases.switch(BACKWARD)

    def _differentiated(self) -> None:
        self._is_in_backward = self._is_copying = False
        self._phases.switch(self._rest)

    def _update(self) -> None:
        self._rest = OPTIMIZER
        before = self._phases.switch(OPTIMIZER)
        self._updating_from = before if self._is_in_backward else OTHER

    def _updated(self) -> None:
        self._rest = OTHER
        self._phases.switch(self._updating_from)

    def _end_step(self, number: int | None) -> None:
        marks, readings = self._phases.cut(), self._phases.take_readings()
        samples, sent, loaded = self._samples, self._sent.take(), self._loaded.next_step()
        if number is not None:
            step: Clocked[Any] = Clocked(
                number,
                marks,
                samples.count,
                samples.evaluated,
                sent,
                self._hides,
                readings,
                loaded=loaded,
                elements=samples.elements,
            )
            self._steps.append(step)
        samples.next_step()
        self._hides = False

    def _begin_readings(self) -> None:
        self._phases.begin_readings()

    def _forget(self) -> None:
        self._steps.append(None)

    def _load(self) -> None:
        self._ask(is_within=self._samples.learns)

    def _load_within(self) -> None:
        self._ask(is_within=True)

    def _ask(self, *, is_within: bool) -> None:
        before = self._phases.switch(DATA)
        self._loading_from.append(before if is_within or before == DATA else self._rest)
        if before != DATA and self._samples.loading():
            self._loaded.evaluates()

    def _has_loaded(self) -> None:
        if self._loading_from:
            self._phases.switch(self._loading_from.pop())

    def _exchange(self) -> None:
        self._hides |= self._phases.phase == BACKWARD
        self._exchange_here()

    def _exchange_here(self) -> None:
        self._exchanging_from.append(self._phases.switch(EXCHANGE))

    def _exchanged(self) -> None:
        if self._exchanging_from:  # else it began before what is clocked did
            self._phases.switch(self._exchanging_from.pop())

    def _move(self) -> None:
        self._phases.mark(self._phases.phase)

    def _moved(self) -> None:
        self._phases.mark(TO_DEVICE)
