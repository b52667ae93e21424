"""Sends the helpers what they need of each call and do not have yet."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, finalize

from torch import Tensor, nn

from samestep.autopilot.helpers.helper import (
    Backward,
    Check,
    FailureRequest,
    Message,
    NewMirror,
    NewPlan,
    SplitCall,
)
from samestep.autopilot.helpers.helper_processes import Helpers
from samestep.autopilot.helpers.messages import Rows, form_of, sent
from samestep.autopilot.helpers.mirrors import MirroredModule, MirrorError, Mirrors, MirrorState
from samestep.autopilot.helpers.pickling import classes_of, scripts_modules_by_value
from samestep.autopilot.helpers.shared_storage import SharedWeights
from samestep.autopilot.helpers.slices import CallGraph, rows_of_inputs
from samestep.autopilot.helpers.split_node import Attempt
from samestep.autopilot.helpers.surroundings import Surroundings
from samestep.autopilot.split.guards import Reach
from samestep.autopilot.split.slice_context import OtherRankFailedError
from samestep.autopilot.split_calls import ModuleCall
from samestep.base.errors import PeerLost
from samestep.hooks.random_draws import RngState
from samestep.parallel.sharding import share


@contextmanager
def _delivered(numbers: list[int]) -> Iterator[list[int]]:
    """Yield numbers that the block sends to the helpers; if it cannot, the next message has them.

    Finalizers may add some meanwhile, also in other threads.
    """
    delivered = [*numbers]
    yield delivered
    del numbers[: len(delivered)]


class Exchange:
    """The main rank's messages to its helpers."""

    def __init__(self, helpers: Helpers) -> None:
        self._helpers, self._slices = helpers, helpers.slices
        self._mirrors = Mirrors(SharedWeights() if helpers.shares_memory else None)
        self.mirrored: WeakKeyDictionary[nn.Module, MirroredModule] = WeakKeyDictionary()
        """The mirrors that helpers have."""
        self.plans: set[int] = set()
        """The numbers of the plans that helpers have."""
        self._calls = 0
        self._released: list[int] = []
        """The calls whose graphs no backward uses any more."""
        self._ended: list[int] = []
        """The mirrors of modules that no longer exist."""
        self._dropped: list[int] = []
        """The checks that no call continues any more, or whose modules no longer exist."""
        self._is_interrupted = False
        """Whether an exchange was interrupted, or goes on."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Exchange messages with the helpers in the block; if it is interrupted, `recover` finds it."""
        self._is_interrupted = True
        self._slices.world.step.begin()
        yield
        self._is_interrupted = False

    def recover(self) -> None:
        """Start the helpers again if one has ended since the last call, or if that call was interrupted.

        A script may catch Ctrl-C, and go on.
        """
        if self._is_interrupted or not self._helpers.are_alive():
            why = "a call was interrupted" if self._is_interrupted else "a helper has ended between two calls"
            with self.open():
                self.restart(PeerLost(why))

    def restart(self, error: Exception) -> None:
        """Start the helpers again, after one was lost; what they had is sent again, or computed here."""
        self._slices.graphs.clear()
        self._slices.checks.clear()
        self._dropped.clear()
        self.mirrored.clear()
        self.plans.clear()
        self._released.clear()
        self._helpers.restart(str(error))

    def fail(self) -> None:
        """Let the helpers know that this rank's part has failed."""
        try:
            self._slices.world.fail()
        except OtherRankFailedError:
            pass
        except PeerLost as error:
            self.restart(error)

    def failure_of_helpers(self) -> str:
        """Return the error of a helper's slice, if one of them has failed in the last call.

        Raises:
            PeerLost: a helper is lost.
        """
        self._helpers.line.send(FailureRequest())
        return self._helpers.line.collect()

    def release(self, number: int) -> None:
        """Release the graph of a call, here now and on helpers with the next message."""
        self._slices.graphs.pop(number, None)
        self._released.append(number)

    def drop_check(self, number: int) -> None:
        """Let no call continue a check; helpers drop it with the next one."""
        self._slices.checks.pop(number, None)
        self._dropped.append(number)

    def drop_with(self, module: nn.Module, number: int) -> None:
        """Drop a check when its module no longer exists."""
        finalize(module, self._dropped.append, number)

    def send_check(
        self,
        call: ModuleCall,
        number: int,
        surroundings: Surroundings,
        streams: RngState,
        *,
        declared: Any,
        begins: bool,
    ) -> None:
        """Let the helpers begin a check, or continue one.

        Raises:
            MirrorError: the module or the arguments cannot be sent.
            PeerLost: a helper is lost.
        """
        message = self._message(call, number, surroundings, streams)
        with _delivered(self._released) as released, _delivered(self._dropped) as dropped:
            for dropped_number in set(dropped) - {number}:
                self._slices.checks.pop(dropped_number, None)
            check = Check(released=released, declared=declared, begins=begins, dropped=dropped, **message)
            self._send(check, call.module)

    def send_call(self, attempt: Attempt) -> int:
        """Let the helpers begin a split call; return the number of the call.

        Raises:
            MirrorError: the module or the arguments cannot be sent.
            PeerLost: a helper is lost.
        """
        number, plan = attempt.plan
        if number not in self.plans:
            self._ask(NewPlan(number=number, plan=plan))
            self.plans.add(number)
        call, carried, surroundings = attempt.call, attempt.carried, attempt.surroundings
        streams = None if plan.draws is None else attempt.streams
        message = self._message(call, number, surroundings, streams, attempt.reach, rewrites=plan.rewrites)
        self._calls += 1
        tensors: list[Tensor] = [*message["written"].values()]
        key: Any = None
        form = form_of(message["arguments"], tensors)
        if form is not None:
            key = (SplitCall, message["mirror"], tuple(message["written"]), number, form)
            key = (*key, surroundings, carried, tuple(call.arguments.first_places.items()))
            if streams is not None:
                tensors += streams.tensors()
                key = (*key, streams.python, *streams.key_of_numpy())
        with _delivered(self._released) as released:
            if form is not None and self._helpers.line.repeat(key, tensors, self._calls, released):
                return self._calls
            rows = Rows(rows_of_inputs(call.arguments, plan), self._shares(call.arguments.total(plan.dims)))
            split = SplitCall(call=self._calls, carried=carried, released=released, **message)
            self._send(split, call.module, key, rows)
        return self._calls

    def send_backward(
        self, graph: CallGraph, number: int, gradients: list[Tensor | None], *, retain: bool
    ) -> None:
        """Let the helpers begin the backward of a call, given the gradients of its outputs.

        Raises:
            PeerLost: a helper is lost.
            OSError: there is no memory for it.
        """
        tensors: list[Tensor] = []
        key = (Backward, form_of(gradients, tensors), graph.total, tuple(graph.rows), retain)
        with _delivered(self._released) as released:
            if self._helpers.line.repeat(key, tensors, number, released):
                return
            message = Backward(call=number, gradients=gradients, retain=retain, released=released)
            by_id = {
                id(gradient): rows
                for gradient, rows in zip(gradients, graph.rows, strict=True)
                if gradient is not None and rows is not None
            }
            self._helpers.line.send(message, key=key, rows=Rows(by_id, self._shares(graph.total)))

    def _message(
        self,
        call: ModuleCall,
        plan: int,
        surroundings: Surroundings,
        streams: RngState | None,
        reach: Reach | None = None,
        *,
        rewrites: bool | None = None,
    ) -> dict[str, Any]:
        """Return what the helpers must know of a call; send the module before, if they do not have it.

        Raises:
            MirrorError: the module cannot be sent.
        """
        module = call.module
        known, state = self.mirrored.get(module), MirrorState.now(module, reach)
        if known is None or not known.serves(state, rewrites=rewrites):
            known, mirror = self._mirrors.mirrored(module, state, known, rewrites=rewrites)
            finalize(module, self._ended.append, known.number)
            self.mirrored.pop(module, None)  # helpers forget it with this message
            with _delivered(self._ended) as ended:
                self._ask(NewMirror(mirror=mirror, ended=ended))
            self.mirrored[module] = known
        with classes_of(known.classes):
            arguments = sent(call.arguments.both)
        return {
            "mirror": known.number,
            "written": known.written(),
            "arguments": arguments,
            "first_places": call.arguments.first_places,
            "surroundings": surroundings,
            "streams": streams,
            "plan": plan,
        }

    def _shares(self, total: int | None) -> list[range]:
        """Return the samples of each rank."""
        size = self._helpers.size
        return [share(total or 0, rank, size) for rank in range(size)]

    def _send(
        self, message: Message, module: nn.Module, key: Hashable = None, rows: Rows | None = None
    ) -> None:
        """Send a message about a call of a module; raise `MirrorError` if it holds what cannot be sent."""
        by_value = scripts_modules_by_value() if key is None or _has_enum(key) else nullcontext()
        try:
            with by_value, classes_of(self.mirrored[module].classes):
                self._helpers.line.send(message, key=key, rows=rows)
        except PeerLost:
            raise
        except Exception as error:  # noqa: BLE001 - of any object of the script
            raise MirrorError(f"its arguments cannot be sent to helpers ({type(error).__name__})") from None

    def _ask(self, message: Message) -> None:
        """Send a message, and wait until all helpers have carried it out.

        Raises:
            MirrorError: one could not.
            PeerLost: one is lost.
        """
        try:
            self._helpers.line.send(message)
        except OSError as failed:
            raise MirrorError(f"there is no memory to send it ({failed})") from None
        if error := self._helpers.line.collect():
            raise MirrorError(f"a helper cannot use it ({error})")


def _has_enum(form: Any) -> bool:
    """Return whether a message of a form has a member of an enumeration, whose class may be the script's."""
    if isinstance(form, type):
        return issubclass(form, Enum)
    return isinstance(form, tuple) and any(map(_has_enum, form))
