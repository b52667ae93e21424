"""Compares split calls of a module with unsplit ones: all of them in a check, and samples of a run.

The equivalence check covers the samples and states that it has computed. A model that counts its calls, or
that treats rare samples differently, may differ later; a difference in a sample check ends the splitting of
its calls before a result is used.
"""

import hashlib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path as FilePath
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence.disturbance import Disturbance, parametrizations_computed
from samestep.autopilot.equivalence.effects import quiet
from samestep.autopilot.equivalence.positions import CheckedPositions
from samestep.autopilot.equivalence.rounding import Difference, close, differing_buffer
from samestep.autopilot.equivalence.unsplit_call import ModuleRun, UnsplitCall, eagerly
from samestep.autopilot.script.call_account import is_user_code
from samestep.autopilot.split.call_arguments import LIST, CallArguments, Dims
from samestep.autopilot.split.call_plans import (
    Gathering,
    ReducedOutput,
    SplitPlan,
    assign_side_outputs,
    batch_split,
    gatherings_for,
    kind_of,
    outcome,
    place_of,
    slice_unknown_state,
    with_samples,
)
from samestep.autopilot.split.gradients import training_nothing
from samestep.autopilot.split.guards import changed, kept_of_slice, returned_of_slice
from samestep.autopilot.split.loss_reduction import read_reduction, watching_reductions
from samestep.autopilot.split.operations import Operation, OperationRecorder
from samestep.autopilot.split.random_draws import FUSED_ATTENTION, DrawPlan, InferredDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.shared_memory import SHARES, View, tensors_beside, views_in
from samestep.autopilot.split.slice_call import Forward, call_slice
from samestep.autopilot.split.slice_context import (
    OtherRankFailedError,
    failing_together,
    is_device_failure,
    unseen_by_layers,
)
from samestep.autopilot.state.reachable_state import is_compiled, marks_of
from samestep.autopilot.state.sample_reads import ReadRecord, SampleReads
from samestep.base.errors import DeviceFailed, UsageError
from samestep.base.units import one_line
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, leaves, mapped, text
from samestep.ranks.world.protocol import World

_DIGEST = 6  # bytes of a digest, which a double has exactly: it has 53 bits


@dataclass(frozen=True, slots=True)
class TriedWay:
    """A way to split the calls of a signature, and why it is none; empty for the way that passed."""

    dims: Dims
    disturbance: Disturbance | None
    """The change of the call that showed it; None for the call itself."""
    why: str
    difference: Difference | None

    def __str__(self) -> str:
        on = "the call itself" if self.disturbance is None else f"a call with {_described(self.disturbance)}"
        distance = "" if self.difference is None else f", by {self.difference}"
        return f"{_way(self.dims)}: {self.why or 'equal to unsplit'}{distance} (checked with {on})"


@dataclass(eq=False, slots=True)
class SplitTrace:
    """The ways that a check has tried, in order."""

    tried: list[TriedWay] = field(default_factory=list)

    def add(
        self, dims: Dims, disturbance: Disturbance | None, why: str, difference: Difference | None
    ) -> None:
        """Add a way with its result."""
        self.tried.append(TriedWay(dict(dims), disturbance, why, difference))

    def explained(self, why: str) -> str:
        """Return a reason with the difference that was found for it, if there is one."""
        difference = next((way.difference for way in self.tried if way.why == why and way.difference), None)
        return (
            why
            if difference is None
            else f"{why}: it differs by {difference.distance:.2g} when the batch is split"
        )


def _way(dims: Mapping[tuple[str | int, ...], int]) -> str:
    """Return the inputs that are split, as such as ``input [0] split along dimension 0``."""
    parts = [
        f"input {text(path[1:])} split {'as a list' if dim == LIST else f'along dimension {dim}'}"
        for path, dim in dims.items()
    ]
    return ", ".join(parts)


def _described(disturbance: Disturbance) -> str:
    """Return the changes that a disturbance makes beside the usual ones."""
    usual = Disturbance(disturbance.size)
    changed = [
        f"{change.name}={getattr(disturbance, change.name)}"
        for change in fields(disturbance)
        if getattr(disturbance, change.name) != getattr(usual, change.name)
    ]
    return "other weights and samples" + (f" ({', '.join(changed)})" if changed else "")


T = TypeVar("T")
SLICE_RAISES = "a slice of its batch raises"
UNPLANNED_DRAWS = "it draws random numbers in a way that cannot be split"
INDEPENDENT = "its outputs do not depend on these inputs"
NOT_GATHERED = "cannot be gathered from those of slices"


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The outputs of a split call, which equal the unsplit ones, and how they were gathered and drawn."""

    gatherings: Mapping[Path, Gathering]
    outputs: Any
    draws: DrawPlan | None
    has_views: bool = False
    """Whether a result of this rank shares memory with another one, an argument or the module."""
    operations: Set[Operation] | None = None
    """The operations of this rank's slices so far; None if they are those of compiled code."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A way to split a call."""

    arguments: CallArguments
    dims: Dims
    split: BatchSplit
    mode: InferredDraws | None
    """The mode that generates its random numbers; None if the call uses none."""
    precise: AbstractContextManager[Any] | None
    slices_state: bool
    """Whether slices go on from slices of what an earlier call has left, or from all of it."""


class SplitComparison:
    """Compares split calls of one module with unsplit ones; all ranks get the same result."""

    def __init__(self, forward: Forward, module: nn.Module, world: World) -> None:
        self._forward, self.module, self._world = forward, module, world
        self.lacks_gathering = False
        """Whether the last split call failed because no way gathers an output."""
        self._gatherings: dict[Path, Sequence[Gathering]] | None = None
        """The ways to gather outputs that passed earlier comparisons; None for all."""

        self._continued: Mapping[Path, Gathering] = {}
        """The kinds of gathering of the state that the last split call went on from in slices."""
        self._inner: bool | None = None
        """Whether samples vary faster than positions in flattened draws; None if unknown."""
        self._operations: set[Operation] = set()
        """The operations of this rank's slices in the comparisons so far."""
        self.reads = ReadRecord()
        """The values that forward has read from its samples in the comparisons so far."""
        self.difference: Difference | None = None
        """The difference of the first output or gradient that the last comparison has found unequal."""

    def forget(self) -> None:
        """Allow all ways to gather outputs and to draw again."""
        self._gatherings = self._inner = None
        self._operations = set()
        self.reads = ReadRecord()

    def split(
        self,
        run: ModuleRun,
        arguments: CallArguments,
        dims: Dims,
        whole: UnsplitCall,
        *,
        grad: bool | None = None,
        precise: AbstractContextManager[Any] | None = None,
    ) -> SplitResult | str:
        """Return the results of the split call if they equal the unsplit ones, else how they differ.

        Args:
            run: restores the module after a failed attempt.
            arguments: the arguments.
            dims: the way: the sample dimension of each input.
            whole: the results of the unsplit call.
            grad: whether a graph is built; None keeps the script's setting.
            precise: the context of a disturbed call; later calls are limited to ways to gather that pass it.
        """
        self.difference = None
        total = arguments.total(dims)
        assert total is not None
        split = batch_split(self._world, dims, total)
        draws = not run.drawn.same(whole.drawn)
        why: str | SplitResult = ""
        for inner in (False, True) if self._inner is None else (self._inner,):
            for slices_state in True, False:
                mode = InferredDraws(split, whole.draws, inner=inner) if draws else None
                with torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
                    attempt = _Attempt(arguments, dims, split, mode, precise, slices_state)
                    result = self._one_split(run, whole, attempt)
                if slices_state or isinstance(result, SplitResult):
                    why = result  # a slice that gets all of the state usually raises, which explains less
                if isinstance(result, SplitResult) or self.agreed(not self._continued):
                    break
                run.restore()
            if mode is None:
                break
            # A rank whose slice has failed may not have come to its flattened draws.
            flattened = not self.agreed(not mode.has_flattened)
            if isinstance(why, SplitResult) or not flattened:
                if precise is not None and flattened:
                    self._inner = inner
                break
            run.restore()
        return why

    def _one_split(self, run: ModuleRun, whole: UnsplitCall, attempt: _Attempt) -> SplitResult | str:
        arguments, dims, split = attempt.arguments, attempt.dims, attempt.split
        mode, precise = attempt.mode, attempt.precise
        # Compiled code is not observed: the disturbed calls have run it eagerly.
        is_watched = precise is not None or not is_compiled(self.module)
        outputs, beside = None, list[tuple[Tensor, Tensor]]()
        reads = SampleReads(watches=precise is not None)  # the script may get these results
        checked = CheckedPositions() if is_watched else nullcontext()
        self._continued = {}
        recorder = OperationRecorder() if mode is None else mode
        # An output may be a sum or a mean over samples if no dimension holds them.
        shapes = [tensor.shape for tensor in whole.outputs.values()]
        watches = not all(any(size % split.total == 0 for size in shape) for shape in shapes)
        with watching_reductions(when=watches) as watching:
            try:
                with (
                    failing_together(self.agreed_on_each, self.are_same),
                    eagerly(self.module, when=precise is not None or mode is not None or watches),
                    nullcontext() if precise is None else quiet(),
                    precise or checked,
                    watching or nullcontext(),
                    recorder if mode is None and is_watched else nullcontext(),
                ):
                    part = arguments.sliced(split, dims)
                    if attempt.slices_state:
                        self._continued = slice_unknown_state(self.module, whole.sides, split)
                    if precise is None:
                        beside = tensors_beside(self.module, part, arguments, dims, run.before.left())
                    reads.follow(part.samples(dims))
                    recorder.follow(with_samples(self.module, part, dims, whole.sides))
                    recording = reads if precise is not None else unseen_by_layers(reads)
                    watched = recording if is_watched else None
                    outputs = call_slice(self._forward, self.module, part, split, draws=mode, reads=watched)
            except Exception as error:  # noqa: BLE001 - a module may raise any error for a slice
                self.end_if_device_failed(error)
                return self._cause(error, SLICE_RAISES)
            views: Mapping[Path, View] | None = {}
            if precise is None:
                views = views_in(dict(leaves(outcome(self.module, outputs, whole.sides))), beside)
            compared = self._compared(run, whole, outputs, split, keeps=precise is not None)
        unknown = frozenset() if mode is None else frozenset(mode.unknown)
        if isinstance(compared, str):
            return _with_draws(compared, unknown)
        if precise is None and not self.agreed(views is not None):
            return SHARES
        if mode is not None and not self.agreed(not unknown):
            return _with_draws(UNPLANNED_DRAWS, unknown)
        self.reads.are_of_others |= whole.reads.are_of_others or reads.found.are_of_others
        if whole.reads.values:  # equal on all ranks
            self.reads.add(whole.reads, self._world.all_gather_objects(reads.found))
        gatherings, result = compared
        self._operations |= recorder.operations
        operations = frozenset(self._operations) if is_watched else None
        return SplitResult(gatherings, result, None if mode is None else mode.plan(), bool(views), operations)

    def _compared(
        self, run: ModuleRun, whole: UnsplitCall, outputs: Any, split: BatchSplit, *, keeps: bool
    ) -> tuple[Mapping[Path, Gathering], Any] | str:
        value = outcome(self.module, outputs, whole.sides)
        parts = dict(leaves(value))
        of_values, of_state = self._differences(run, whole, outputs, parts, split.total)
        if of_values:
            return of_values
        gatherings: dict[Path, Gathering] = {}
        together: dict[Path, Tensor] = {}
        left: dict[Path, Sequence[Gathering]] = {}
        for path, part in parts.items():
            gathered = self._gatherings_of(path, whole, part, split, all_of_them=keeps)
            if not gathered:
                self.lacks_gathering = True
                return f"{place_of(path)} {NOT_GATHERED}"
            left[path] = [gathering for gathering, _ in gathered]
            gatherings[path], together[path] = gathered[0]
        if of_state:
            return of_state
        if keeps:
            self._gatherings = left
        result, kept = mapped(value, lambda path, _: together[path])
        assign_side_outputs(self.module, kept)
        return gatherings, result

    def _differences(
        self,
        run: ModuleRun,
        whole: UnsplitCall,
        outputs: Any,
        parts: Mapping[Path, Tensor],
        total: int,
    ) -> tuple[str, str]:
        """Return how the outputs differ on any rank, and how the state after the call does; empty for equal.

        All of it is known before the outputs are gathered, so the ranks agree on it in one collective.
        """
        has_structure = parts.keys() == whole.outputs.keys() and run.before.left().keys() <= set(whole.sides)
        place = returned_of_slice(whole.returned, outputs, total)
        marked = next((path for path, part in parts.items() if type(part) is Tensor and marks_of(part)), None)
        name = kept_of_slice(whole.left, changed(run.left, run.state()), total)
        buffer = differing_buffer(run.before.buffers(), whole.buffers, whole.precision)
        is_drawn = RngState.now(self._world.device).same(whole.drawn)
        elsewhere = "on another worker"
        values = {
            "its outputs have another structure": has_structure,
            f"its output{place or ''} is no tensor and may depend on the slice": place is None,
            f"{place_of(marked or (0,))} has attributes beside its numbers": marked is None,
            f"it keeps a value that may depend on the slice ({name or elsewhere})": name is None,
        }
        of_slice = "statistics or a state of its slice"  # the second as in spiking networks
        state = {
            f"its buffers differ: it keeps {of_slice} ({buffer or elsewhere})": buffer is None,
            UNPLANNED_DRAWS: is_drawn,
        }
        # A loss that every rank computes from all samples has the right mean, too. Only the first comparison
        # shows it: in later ones, values are so large or small that a loss may have the same for all samples.
        is_first = self._gatherings is None
        is_fixed = (
            is_first
            and has_structure
            and all(close(part, whole.outputs[path]) for path, part in parts.items())
        )
        *equal, is_fixed = self.agreed_on_each(*values.values(), *state.values(), is_fixed)
        reasons = [why for why, holds in zip((*values, *state), equal, strict=True) if not holds]
        of_values = [why for why in reasons if why in values]
        of_state = [why for why in reasons if why in state]
        if is_fixed:
            of_values.append(INDEPENDENT)
        return next(iter(of_values), ""), next(iter(of_state), "")

    def _gatherings_of(
        self, path: Path, whole: UnsplitCall, part: Tensor, split: BatchSplit, *, all_of_them: bool
    ) -> list[tuple[Gathering, Tensor]]:
        """Return the ways to gather an output that give the unsplit one, with their results: one, or all.

        Of a state that was sliced, only ways of the kind by which it was.
        """
        output, kind = whole.outputs[path], self._continued.get(path)
        possible = [way for way in gatherings_for(output, part, split) if kind in (None, kind_of(way))]
        if self._gatherings is not None:
            allowed = self._gatherings.get(path, ())
            possible = [gathering for gathering in possible if kind_of(gathering) in map(kind_of, allowed)]
        possible = self._on_all_ranks(
            {repr((kind_of(gathering), _form(gathering, part, split))): gathering for gathering in possible}
        )
        right: list[tuple[Gathering, Tensor]] = []
        for gathering in possible:
            try:
                together = gathering.gather(part, split, is_compared=True)
            except UsageError:  # on this rank alone, after the communication
                together = None
            if self.agreed(together is not None and whole.are_close(together, output)):
                assert together is not None
                right.append((gathering, together))
                if not all_of_them:
                    break
            elif together is not None and self.difference is None:
                self.difference = whole.difference(together, output)
        return right

    def attempted(self, run: Callable[[], T]) -> tuple[T | None, str]:
        """Return the result of `run`; or None and the error, if it has failed on any rank."""
        result, failure = None, None
        try:
            result = run()
        except Exception as error:  # noqa: BLE001 - a model may raise any error
            self.end_if_device_failed(error)
            failure = error
        return (result, "") if self.agreed(failure is None) else (None, self._cause(failure))

    def _cause(self, failure: Exception | None, prefix: str = "") -> str:
        """Return an error of a rank, if possible none that follows from another's; all ranks call this."""
        text, is_cause = "", False
        if failure is not None:
            is_cause = not isinstance(failure, OtherRankFailedError)
            text = f"{prefix} {in_one_line(failure)}".lstrip() if is_cause else str(failure)
        *_, cause = max(self._world.all_gather_objects((is_cause, text)))
        return str(cause)

    def end_if_device_failed(self, error: Exception) -> None:
        """Raise `DeviceFailed` if an error is that of a device, which computes nothing any more."""
        if is_device_failure(error):
            raise DeviceFailed(
                f"the device failed while samestep checked if {type(self.module).__name__} can be split: "
                f"{in_one_line(error)}. CUDA_LAUNCH_BLOCKING=1 shows the operation. To leave the check out, "
                "keep these calls unsplit: samestep.batch_dim(model, dim=None)."
            ) from None

    def agreed(self, here: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether all ranks have passed True."""
        return self.agreed_on_each(here)[0]

    def agreed_on_each(self, *here: bool) -> list[bool]:
        """Return for each argument whether all ranks have passed True."""
        flags = torch.tensor([float(flag) for flag in here], dtype=torch.float64, device=self._world.device)
        self._world.all_reduce(flags, op="min")
        return [bool(flag) for flag in flags.tolist()]

    def are_same(self, value: Any) -> bool:
        """Return whether all ranks have passed a value of the same text."""
        digest = hashlib.blake2b(repr(value).encode(), digest_size=_DIGEST).digest()
        number = float(int.from_bytes(digest, "big"))
        least = torch.tensor([number, -number], dtype=torch.float64, device=self._world.device)
        self._world.all_reduce(least, op="min")
        lowest, negative_of_highest = least.tolist()
        return bool(lowest == -negative_of_highest)

    def _on_all_ranks(self, values: Mapping[str, T]) -> list[T]:
        """Return the values whose names all ranks have passed, in the same order on all ranks."""
        if self.are_same(list(values)):
            return list(values.values())
        first, *of_others = self._world.all_gather_objects(list(values))
        return [values[name] for name in first if all(name in names for names in of_others)]


def _with_draws(why: str, unknown: Collection[str]) -> str:
    """Return a reason with the draws that cannot be split; those of attention are a reason of their own."""
    if FUSED_ATTENTION in unknown:
        return FUSED_ATTENTION
    return f"{why} ({'; '.join(sorted(unknown))})" if unknown else why


_DECIMALS = 9  # of elements per sample, which are quotients in double precision


def _form(gathering: Gathering, part: Tensor, split: BatchSplit) -> Any:
    """Return the properties of a reduction that must be equal on all ranks before they communicate."""
    reduction = read_reduction(part, gathering.reading) if isinstance(gathering, ReducedOutput) else None
    if reduction is None:
        return None
    # Several means have a common weight only if each has a constant number of elements per sample.
    values = reduction.values()
    of_sample = [round(value / split.local, _DECIMALS) for value in values]
    return reduction.kind, of_sample if len(values) > 1 else []


def in_one_line(error: Exception) -> str:
    """Return an error as one line, with the line of user code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = next((frame for frame in reversed(frames) if is_user_code(frame.filename)), None)
    at = "" if where is None else f" ({FilePath(where.filename).name}:{where.lineno})"
    return f"{type(error).__name__}: {one_line(str(error))}{at}"


_FIRST_TRAINING, _FIRST_EVALUATION = 32, 100
"""The number of calls before the first check, divided by the number of ranks. An unsplit forward takes as
long as one slice per rank, and a training step as long as three forwards, so checks take about 1 % of the
time."""


class CheckSchedule:
    """Decides, equally on all ranks, which split calls are checked: every K-th, or for None ever fewer."""

    def __init__(self, size: int, every: int | None) -> None:
        self._size, self._every = size, every
        self._calls: WeakKeyDictionary[nn.Module, dict[bool, int]] = WeakKeyDictionary()

    def is_due(self, module: nn.Module, *, grad: bool) -> bool:
        """Count a split call of a module, and return whether it is checked."""
        counts = self._calls.setdefault(module, {})
        counts[grad] = count = counts.get(grad, 0) + 1
        if self._every is not None:
            return self._every > 0 and count % self._every == 0
        number, rest = divmod(count, self._size * (_FIRST_TRAINING if grad else _FIRST_EVALUATION))
        return rest == 0 and number.bit_count() == 1


class SampleCheck:
    """Compares a split call with the same call, computed unsplit before."""

    def __init__(self, run: ModuleRun, whole: UnsplitCall | None) -> None:
        self._run, self._whole = run, whole

    @classmethod
    def computed(
        cls,
        forward: Forward,
        module: nn.Module,
        arguments: CallArguments,
        device: torch.device,
        *,
        draws: bool,
    ) -> "SampleCheck":
        """Compute a call unsplit, and restore the module."""
        run, whole = ModuleRun(forward, module, device), None
        # It may differentiate within forward; the split call raises other errors.
        with suppress(Exception), parametrizations_computed(), training_nothing():
            whole = run.unsplit(arguments, records=draws)
        run.restore()
        return cls(run, whole)

    def difference(self, result: Any, plan: SplitPlan) -> str:
        """Return how the outputs and the state of the split call differ; empty if they are equal."""
        whole = self._whole
        if whole is None:
            return ""
        parts = dict(leaves(outcome(self._run.module, result, plan.sides)))
        if parts.keys() != whole.outputs.keys():
            return "its outputs have another structure"
        for path, tensor in whole.outputs.items():
            if not whole.are_close(parts[path], tensor):
                distance = _apart(parts[path], tensor)
                return f"{place_of(path)} differs{distance}"
        name = differing_buffer(self._run.before.buffers(), whole.buffers, whole.precision)
        if name is not None:
            return f"its buffer {name} differs"
        if not self._run.drawn_now().same(whole.drawn):
            return "it draws other random numbers"
        return ""


def _apart(result: torch.Tensor, expected: torch.Tensor) -> str:
    if result.shape != expected.shape:
        return f": it is {list(result.shape)}, and {list(expected.shape)} unsplit"
    difference = (result.detach().double() - expected.double()).abs().nan_to_num(float("inf")).max()
    return f" by up to {float(difference):.2g}"
