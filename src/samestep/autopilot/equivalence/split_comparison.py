"""Splits one call across the ranks, and compares its results with the unsplit call."""

import hashlib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence.positions import CheckedPositions
from samestep.autopilot.equivalence.rounding import Difference, close, differing_buffer
from samestep.autopilot.equivalence.unsplit_call import ModuleRun, UnsplitCall, eagerly, quiet
from samestep.autopilot.script.call_account import is_user_code
from samestep.autopilot.split.call_plans import (
    CallArguments,
    ConcatenatedOutput,
    Gathering,
    ReducedOutput,
    batch_split,
    gatherings_for,
)
from samestep.autopilot.split.device_failures import is_device_failure
from samestep.autopilot.split.draw_plans import DrawPlan
from samestep.autopilot.split.forward_reductions import read_reduction, watching_reductions
from samestep.autopilot.split.guards import changed, kept_of_slice, python_state, returned_of_slice
from samestep.autopilot.split.module_outputs import assign_side_outputs, outcome
from samestep.autopilot.split.random_draws import FUSED_ATTENTION, InferredDraws
from samestep.autopilot.split.sample_lists import Dims
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_call import Forward, call_slice
from samestep.autopilot.split.slice_context import OtherRankFailedError, failing_together
from samestep.autopilot.state.reachable_state import is_compiled
from samestep.autopilot.state.sample_reads import ReadRecord, SampleReads
from samestep.base.errors import DeviceFailed, UsageError
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, leaves, mapped, text
from samestep.ranks.world.protocol import World

T = TypeVar("T")
SLICE_RAISES = "a slice of its batch raises"
UNPLANNED_DRAWS = "it draws random numbers in a way that cannot be split"
NOT_GATHERED = "cannot be gathered from those of slices"


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The outputs of a split call, which equal the unsplit ones, and how they were gathered and drawn."""

    gatherings: Mapping[Path, Gathering]
    outputs: Any
    draws: DrawPlan | None


class SplitComparison:
    """Compares split calls of one module with unsplit ones; all ranks get the same result."""

    def __init__(self, forward: Forward, module: nn.Module, world: World) -> None:
        self._forward, self.module, self._world = forward, module, world
        self._gatherings: dict[Path, Sequence[Gathering]] | None = None
        """The ways to gather outputs that passed earlier comparisons; None for all."""

        self._inner: bool | None = None
        """Whether samples vary faster than positions in flattened draws; None if unknown."""
        self.reads = ReadRecord()
        """The values that forward has read from its samples in the comparisons so far."""
        self.difference: Difference | None = None
        """The difference of the first output or gradient that the last comparison has found unequal."""

    def forget(self) -> None:
        """Allow all ways to gather outputs and to draw again."""
        self._gatherings = self._inner = None
        self.reads = ReadRecord()

    def split(
        self,
        run: ModuleRun,
        given: CallArguments,
        dims: Dims,
        whole: UnsplitCall,
        *,
        grad: bool | None = None,
        precise: AbstractContextManager[Any] | None = None,
    ) -> SplitResult | str:
        """Return the results of the split call if they equal the unsplit ones, else how they differ.

        Args:
            run: restores the module after a failed attempt.
            given: the arguments.
            dims: the way: the sample dimension of each input.
            whole: the results of the unsplit call.
            grad: whether a graph is built; None keeps the script's setting.
            precise: the context of a disturbed call; later calls are limited to ways to gather that pass it.
        """
        self.difference = None
        total = given.total(dims)
        assert total is not None
        split = batch_split(self._world, dims, total)
        draws = not run.drawn.same(whole.drawn)
        why: str | SplitResult = ""
        for inner in (False, True) if self._inner is None else (self._inner,):
            mode = InferredDraws(split, whole.draws, inner=inner) if draws else None
            with torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
                why = self._one_split(run, given, dims, whole, split, mode, precise)
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

    def _one_split(
        self,
        run: ModuleRun,
        given: CallArguments,
        dims: Dims,
        whole: UnsplitCall,
        split: BatchSplit,
        mode: InferredDraws | None,
        precise: AbstractContextManager[Any] | None,
    ) -> SplitResult | str:
        # Compiled code is not observed: the disturbed calls have run it eagerly.
        is_watched = precise is not None or not is_compiled(self.module)
        outputs, reads = None, SampleReads()
        checked = CheckedPositions() if is_watched else nullcontext()
        # An output may be a sum or a mean over samples if no dimension holds them.
        shapes = [tensor.shape for tensor in whole.outputs.values()]
        watches = not all(any(size % split.total == 0 for size in shape) for shape in shapes)
        with watching_reductions(when=watches) as watching:
            try:
                with (
                    failing_together(self.agreed_on_each),
                    eagerly(self.module, when=precise is not None),
                    nullcontext() if precise is None else quiet(),
                    precise or checked,
                    watching or nullcontext(),
                ):
                    own = given.sliced(split, dims)
                    reads.follow(own.samples(dims))
                    watched = reads if is_watched else None
                    outputs = call_slice(self._forward, self.module, own, split, draws=mode, reads=watched)
            except Exception as error:  # noqa: BLE001 - a module may raise any error for a slice
                return self._cause(error, SLICE_RAISES)
            found = self._compared(run, whole, outputs, split, keeps=precise is not None)
        unknown = frozenset() if mode is None else frozenset(mode.unknown)
        if isinstance(found, str):
            return _with_draws(found, unknown)
        if mode is not None and not self.agreed(not unknown):
            return _with_draws(UNPLANNED_DRAWS, unknown)
        if whole.reads:  # equal on all ranks
            self.reads.add(whole.reads, self._world.all_gather_objects(reads.found))
        gatherings, result = found
        return SplitResult(gatherings, result, None if mode is None else mode.plan())

    def _compared(
        self, run: ModuleRun, whole: UnsplitCall, outputs: Any, split: BatchSplit, *, keeps: bool
    ) -> tuple[Mapping[Path, Gathering], Any] | str:
        value = outcome(self.module, outputs, whole.sides)
        parts = dict(leaves(value))
        of_values, of_state = self._differences(run, whole, outputs, parts, split.total, keeps=keeps)
        if of_values:
            return of_values
        gatherings: dict[Path, Gathering] = {}
        together: dict[Path, Tensor] = {}
        left: dict[Path, Sequence[Gathering]] = {}
        for path, part in parts.items():
            found = self._gatherings_of(path, whole, part, split, all_of_them=keeps)
            if not found:
                return f"its output{text(path[1:])} {NOT_GATHERED}"
            left[path] = [gathering for gathering, _ in found]
            gatherings[path], together[path] = found[0]
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
        *,
        keeps: bool,
    ) -> tuple[str, str]:
        """Return how the outputs differ on any rank, and how the state after the call does; empty for equal.

        All of it is known before the outputs are gathered, so the ranks agree on it in one collective.
        """
        alike = parts.keys() == whole.outputs.keys() and run.before.left().keys() <= set(whole.sides)
        place = returned_of_slice(whole.returned, outputs, total)
        name = kept_of_slice(whole.left, changed(run.left, python_state(self.module)), total)
        buffer = differing_buffer(run.before.buffers(), whole.buffers, whole.precision)
        is_drawn = RngState.now(self._world.device).same(whole.drawn)
        elsewhere = "on another worker"
        values = {
            "its outputs have another structure": alike,
            f"its output{place or ''} is no tensor and may depend on the slice": place is None,
            f"it keeps a value that may depend on the slice ({name or elsewhere})": name is None,
        }
        state = {
            f"its buffers differ: it keeps statistics of its slice ({buffer or elsewhere})": buffer is None,
            UNPLANNED_DRAWS: is_drawn,
        }
        # A loss that every rank computes from all samples has the right mean, too.
        is_fixed = keeps and alike and all(close(part, whole.outputs[path]) for path, part in parts.items())
        *equal, is_fixed = self.agreed_on_each(*values.values(), *state.values(), is_fixed)
        found = [why for why, holds in zip((*values, *state), equal, strict=True) if not holds]
        of_values = [why for why in found if why in values]
        of_state = [why for why in found if why in state]
        if is_fixed:
            of_values.append("its outputs do not depend on these inputs")
        return next(iter(of_values), ""), next(iter(of_state), "")

    def _gatherings_of(
        self, path: Path, whole: UnsplitCall, part: Tensor, split: BatchSplit, *, all_of_them: bool
    ) -> list[tuple[Gathering, Tensor]]:
        """Return the ways to gather an output that give the unsplit one, with their results: one, or all."""
        output = whole.outputs[path]
        possible = list(gatherings_for(output, part, split))
        if self._gatherings is not None:
            allowed = self._gatherings.get(path, ())
            possible = [one for one in possible if _kind(one) in map(_kind, allowed)]
        possible = self._on_all_ranks({repr((_kind(one), _form(one, part, split))): one for one in possible})
        right: list[tuple[Gathering, Tensor]] = []
        for gathering in possible:
            try:
                together = gathering.gather(part, split)
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
            self.end_if_device_failed(failure)
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
        flags = torch.tensor([float(one) for one in here], dtype=torch.float64, device=self._world.device)
        self._world.all_reduce(flags, op="min")
        return [bool(one) for one in flags.tolist()]

    def _on_all_ranks(self, found: Mapping[str, T]) -> list[T]:
        """Return the values whose names all ranks have passed, in the same order on all ranks."""
        digest = hashlib.blake2b(repr(list(found)).encode(), digest_size=6).digest()
        number = float(int.from_bytes(digest, "big"))  # exact: a double has 53 bits
        least = torch.tensor([number, -number], dtype=torch.float64, device=self._world.device)
        self._world.all_reduce(least, op="min")
        lowest, negative_of_highest = least.tolist()
        if lowest == -negative_of_highest:
            return list(found.values())
        first, *others = self._world.all_gather_objects(list(found))
        return [found[name] for name in first if all(name in names for names in others)]


def _with_draws(why: str, unknown: Collection[str]) -> str:
    """Return a reason with the draws that cannot be split; those of attention are a reason of their own."""
    if FUSED_ATTENTION in unknown:
        return FUSED_ATTENTION
    return f"{why} ({'; '.join(sorted(unknown))})" if unknown else why


def _kind(gathering: Gathering) -> Any:
    """Return a way to gather outputs, without the fields that depend on a batch's layout in memory."""
    return (
        replace(gathering, order=(), expanded=()) if isinstance(gathering, ConcatenatedOutput) else gathering
    )


def _form(gathering: Gathering, part: Tensor, split: BatchSplit) -> Any:
    """Return the properties of a reduction that must be equal on all ranks before they communicate."""
    found = read_reduction(part, gathering.reading) if isinstance(gathering, ReducedOutput) else None
    if found is None:
        return None
    # Several means have a common weight only if each has a constant number of elements per sample.
    values = found.values()
    return found.kind, [round(one / split.local, 9) for one in values] if len(values) > 1 else []


def in_one_line(error: Exception) -> str:
    """Return an error as one line, with the line of user code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = next((one for one in reversed(frames) if is_user_code(one.filename)), None)
    at = "" if where is None else f" ({FilePath(where.filename).name}:{where.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{at}"
