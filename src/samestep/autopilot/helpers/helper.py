"""Runs a helper: prepares its process, and carries out the main rank's messages until that ends."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence.effects import announced_files, remove_temporary_folders, watch_effects
from samestep.autopilot.equivalence.split_comparison import in_one_line
from samestep.autopilot.helpers.messages import LineOfHelper, received
from samestep.autopilot.helpers.mirrors import Kind, MappedWeights, Mirror, MirrorMessage
from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.helpers.surroundings import Surroundings
from samestep.autopilot.helpers.team import TeamWorld
from samestep.autopilot.split.call_arguments import CallArguments, Dims
from samestep.autopilot.split.call_plans import SplitPlan, assign_side_outputs
from samestep.autopilot.split.gradients import SliceGradients, averaging_grad, detected_training
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import (
    OtherRankFailedError,
    batch_norm_of_slices,
    known_to_compilers,
    slice_aware_functions,
)
from samestep.autopilot.split_calls import (
    current_gradients,
    intercepted_calls,
    splitting_calls,
)
from samestep.autopilot.state.saved_state import SideOutput
from samestep.base.errors import PeerLost
from samestep.base.event_record import note
from samestep.base.machine.c_libraries import keep_freed_memory
from samestep.base.place import Place
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, mapped
from samestep.launchers.registry import SAMESTEP, TORCHELASTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of the main rank to the helpers."""

    released: Sequence[int] = ()
    """The calls whose graphs are no longer needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMirror(Message):
    """A module to be called later."""

    mirror: MirrorMessage
    ended: Sequence[int]
    """The mirrors of modules that no longer exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan(Message):
    """A plan that this helper has not found itself, as it was started again."""

    number: int
    plan: SplitPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRequest(Message):
    """A request for the error of the last slice, after the ranks have learned that one of them has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall(Message):
    """A call of a mirror."""

    mirror: int
    written: Mapping[Kind, Tensor]
    """The bytes of the tensors of the mirror that are not shared, if the script has written to them."""
    arguments: Any
    """The positional and the named arguments."""
    first_places: Mapping[Path, Path]
    """See `CallArguments.first_places`."""
    surroundings: Surroundings
    streams: RngState | None
    """The state of the random generators; None for a call that draws no numbers."""
    plan: int
    """The number of the plan."""

    def received(self) -> CallArguments:
        """Return the arguments; raise an error if an object cannot be made again."""
        return CallArguments(*received(self.arguments)).joined(self.first_places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(ModuleCall):
    """A call that is checked: can it be split?"""

    declared: Dims | None
    """The way that the script declares; None for all ways that the shapes allow."""
    begins: bool
    """Whether the check begins with this call, and does not continue that of an earlier one."""
    dropped: Sequence[int]
    """The checks that are no longer continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCall(ModuleCall):
    """A call that is split by a plan."""

    call: int
    """The number under which the graph is kept."""
    carried: Sequence[SideOutput]
    """The attributes of the module that hold tensors with a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward(Message):
    """The backward of a call."""

    call: int
    gradients: Sequence[Tensor | None]
    """Of the outputs that have gradients."""
    retain: bool
    """Whether the graph is kept for another backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Message):
    """The end of the script."""


@dataclass(eq=False, slots=True)
class Helper:
    """The state of one helper."""

    slices: RankSlices
    line: LineOfHelper
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    weights: MappedWeights = field(default_factory=MappedWeights)
    failure: str = ""
    """The error of the last slice; empty if there was none."""

    def serve(self) -> None:
        """Carry out messages until the script has ended.

        Raises:
            PeerLost: the main rank has ended without a word, or another rank is lost.
        """
        while not isinstance(message := self.line.receive(), End):
            self.slices.world.step.begin()
            for call in message.released:
                self.slices.graphs.pop(call, None)
            if isinstance(message, (SplitCall, Backward)):
                self._compute(message)
            elif isinstance(message, FailureRequest):
                self.line.answer(self.failure)
            else:
                self._prepare(message)
            remove_temporary_folders()  # not at the end, when the main rank kills its helpers

    def _compute(self, message: "SplitCall | Backward") -> None:
        """Compute a part of a call or of a backward; if that fails, it fails on all ranks."""
        self.failure = ""
        try:
            if isinstance(message, SplitCall):
                note(f"slice of call {message.call}")
                self._call(message)
            else:
                note(f"slice of the backward of call {message.call}")
                graph = self.slices.graphs[message.call]
                self.slices.backward(graph, message.gradients, retain=message.retain)
        except OtherRankFailedError:
            pass
        except PeerLost:
            raise
        except Exception as error:  # noqa: BLE001 - the main rank computes the call, and raises what it raises
            self.failure = "" if self.slices.world.step.has_ended else in_one_line(error)
            with suppress(OtherRankFailedError):
                self.slices.world.fail()

    def _prepare(self, message: Message) -> None:
        """Carry out a message that is answered; a check that fails here fails on all ranks."""
        error = ""
        try:
            if isinstance(message, NewMirror):
                before = self.mirrors.pop(message.mirror.replaces or 0, None)  # they are numbered from 1
                for number in message.ended:
                    self.mirrors.pop(number, None)
                self.mirrors[message.mirror.number] = self.weights.mirror(message.mirror, before)
            elif isinstance(message, NewPlan):
                self.slices.plans[message.number] = message.plan
            elif isinstance(message, Check):
                for number in message.dropped:
                    self.slices.checks.pop(number, None)
                with self._called(message) as mirror:
                    self._check(message, mirror)
        except OtherRankFailedError:
            pass  # the main rank has it, too, and the rank that has failed answers why
        except PeerLost:
            raise
        except Exception as raised:  # noqa: BLE001 - of any code of the script; the call then is not split
            if isinstance(message, Check):
                with suppress(OtherRankFailedError):
                    self.slices.world.fail()
            error = f"{type(raised).__name__}: {raised}"
        self.line.answer(error)

    def _check(self, message: Check, mirror: Mirror) -> None:
        arguments = message.received().changed(_copy)
        try:
            self.slices.check(
                *(message.plan, nn.Module.__call__, mirror.module, arguments, message.declared),
                begins=message.begins,
            )
        finally:
            self.weights.forget_writes()  # those of a forward that averages its weights into a teacher's

    def _call(self, message: SplitCall) -> None:
        with self._called(message) as mirror:
            plan, arguments = self.slices.plans[message.plan], message.received()
            result = self.slices.call(
                plan, nn.Module.__call__, mirror.module, mirror.weights, arguments, carried=message.carried
            )
        assign_side_outputs(mirror.module, mapped(result.sides, lambda _, tensor: tensor.detach()))
        if result.graph is not None:
            self.slices.graphs[message.call] = result.graph

    @contextmanager
    def _called(self, message: "Check | SplitCall") -> Iterator[Mirror]:
        """Make a mirror, the generators and modes as they are on the main rank; yield the mirror."""
        mirror = self.mirrors[message.mirror]
        self.weights.use(mirror.environment)
        mirror.unshared.set(message.written)
        if message.streams is not None:
            # Torch reads a generator's state from the begin of its storage.
            replace(message.streams, cpu=message.streams.cpu.clone()).restore()
        with message.surroundings.entered(mirror.module):
            yield mirror


def _copy(_: object, tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def serve(world: TeamWorld, line: LineOfHelper, *, threads: int) -> None:
    """Compute slices of the main rank's calls until its script has ended."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    slices = RankSlices(world, SliceGradients(world), copies=True)
    with computing_slices(), announced_files(), splitting_calls(_HelperCalls(slices)):
        watch_effects(refuses_all=True)
        try:
            with suppress(PeerLost):
                Helper(slices, line).serve()
        finally:
            watch_effects()
    line.close()


_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
OF_MAIN = {*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
"""Signals that a terminal or a scheduler sends to all processes: only the script decides what they mean."""


@contextmanager
def signals_left_to_main(place: Place) -> Iterator[None]:
    """Ignore the signals `OF_MAIN` on the rank at `place` in the block, which ends with the main rank.

    The launcher of a node ends its own ranks only: by its signals, where the main rank does not get them.
    """
    has_own_launcher = place.node > 0 and place.launcher in (SAMESTEP.name, TORCHELASTIC.name)
    ignored = OF_MAIN - _ENDING if has_own_launcher else OF_MAIN
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None for one that is not of Python


@contextmanager
def silent(rank: int) -> Iterator[None]:
    """Print nothing that a forward prints in the block, since the main rank prints it, too.

    An error of the block ends it, and is printed: with its traceback if it is a fault of samestep.
    """
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):
            stream.flush()
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        yield
    except (OSError, MemoryError) as error:
        os.write(stderr, f"samestep: helper {rank} has ended ({type(error).__name__}: {error})\n".encode())
    except BaseException:  # noqa: BLE001 - the main rank computes what this one does not
        os.write(stderr, f"samestep: helper {rank} has failed\n{traceback.format_exc()}".encode())


class _HelperCalls:
    """Calls of modules on a helper, which are parts of calls that the main rank splits."""

    def __init__(self, slices: RankSlices) -> None:
        self.gradients = slices.gradients

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module as it is."""
        return forward(module, *args, **kwargs)


@contextmanager
def computing_slices() -> Iterator[None]:
    """Let the calls of the block be slices of calls."""
    with ExitStack() as stack:
        for context in (
            intercepted_calls(),
            detected_training(),
            batch_norm_of_slices(),
            slice_aware_functions(),
            known_to_compilers(),
            averaging_grad(current_gradients),
        ):
            stack.enter_context(context)
        yield
