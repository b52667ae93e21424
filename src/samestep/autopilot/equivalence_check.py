"""The equivalence check: a call is computed both ways, unsplit and split, before it is split in a run.

Whether a call can be split cannot be seen from its inputs: samples may be compared with each other, the first
dimension may be time, a loss may be a mean of unequal parts. Nor does one batch prove it: see
`samestep.autopilot.disturbance`. So each call signature is checked, for each way that its shapes allow::

    other weights and samples, uneven slices, double precision     outputs, buffers, draws, gradients
    the call itself                                                outputs, buffers, draws

A way is right if it gives in both what the unsplit call gives. If none is, calls of this signature stay
unsplit: every rank computes all of them, which is slower and right.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from samestep.autopilot.account import is_users
from samestep.autopilot.cut import Cut
from samestep.autopilot.declared import declared_dims, stays_unsplit
from samestep.autopilot.disturbance import (
    Disturbance,
    DoublePrecision,
    disturbances,
    disturbed_inputs,
    disturbed_weights,
)
from samestep.autopilot.draws import DrawPlan, FoundDraws
from samestep.autopilot.forward_reductions import watching_reductions
from samestep.autopilot.guards import changed, hooked, kept_of_slice, left_behind, returned_number
from samestep.autopilot.plans import (
    Concatenated,
    Dims,
    Given,
    Joint,
    Reduced,
    SplitPlan,
    candidates,
    joints_for,
)
from samestep.autopilot.reached import is_compiled
from samestep.autopilot.sides import leave, outcome
from samestep.autopilot.slice_call import Forward, call_slice
from samestep.autopilot.whole_call import ModuleRun, WholeCall, close, differing_buffer, eagerly, largest
from samestep.watch.drawn import Drawn
from samestep.watch.tree import Path, leaves, mapped, text
from samestep.world.world import World

FEWER = "fewer samples than workers"
COMPILED_DRAWS = (
    "torch.compile draws its dropout itself, for a slice otherwise than for the whole batch: without "
    "torch.compile it can be split"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Args:
        plan: how calls of this signature are split; None where they stay unsplit.
        outputs: of this call, by the plan; nothing where there is none.
        why: why there is no plan.
        printed: whether the module prints when it is called.
    """

    plan: SplitPlan | None
    outputs: Any = None
    why: str = ""
    printed: bool = False


@dataclass(frozen=True, slots=True)
class _Split:
    """What came of a call that was split, if it is what the unsplit call gave.

    Args:
        joints: how its outputs are put together.
        outputs: its outputs.
        draws: its random draws.
    """

    joints: Mapping[Path, Joint]
    outputs: Any
    draws: DrawPlan | None


class EquivalenceCheck:
    """The equivalence check of one call.

    Args:
        forward: runs the module.
        module: the module.
        given: the call's arguments.
        world: the ranks.
        gradient: computes gradients, as `torch.autograd.grad` of torch itself.
    """

    def __init__(
        self,
        forward: Forward,
        module: nn.Module,
        given: Given,
        world: World,
        gradient: Callable[..., Any] = torch.autograd.grad,
    ) -> None:
        self._forward, self._module, self._given, self._world = forward, module, given, world
        self._gradient = gradient
        self._run = ModuleRun(forward, module, world.device)
        self._draws = False
        """Whether the call draws random numbers."""
        self._joints: dict[Path, Sequence[Joint]] | None = None
        """The ways to put outputs together that the disturbed check has left."""

    def run(self) -> Verdict:
        """Check all ways; leave the module and the generators as the way that is right does, or as before."""
        if (why := self._refusal()) is not None:
            return Verdict(None, why=why)
        whole = self._run.whole(self._given)
        if whole.wrote_inputs:
            self.restore()
            return Verdict(None, why="it writes into what it is given")
        if not self._run.drawn.same(whole.drawn):
            self.restore()
            recorded = self._run.whole(self._given, records=True)
            if not self._agreed(recorded.drawn.same(whole.drawn)):
                self.restore()
                return Verdict(None, why=COMPILED_DRAWS if is_compiled(self._module) else _DRAWS)
            whole = recorded
        self._draws = not self._run.drawn.same(whole.drawn)
        reasons = []
        for dims in self._ways():
            self.restore()
            why = self._refuted(dims)
            if not why:
                self.restore()
                found = self._split(self._run, self._given, dims, whole)
                if isinstance(found, _Split):
                    return Verdict(self._plan(dims, whole, found), found.outputs, printed=whole.printed)
                why = found
            reasons.append(why)
        self.restore()
        first = next((tensor.size(0) for _, tensor in self._given.tensors()), 0)
        likeliest = reasons[0] if reasons and first >= self._world.place.size else FEWER
        return Verdict(None, why=likeliest)

    def restore(self) -> None:
        """Leave the module and the generators as they were before."""
        self._run.restore()

    def _refusal(self) -> str | None:
        """Return why this module is not split at all, if that can be said before it is called."""
        if stays_unsplit(self._module):
            return "samestep.split(..., dim=None) keeps it so"
        if any(is_lazy(parameter) for parameter in self._module.parameters()):
            return "its parameters have no shapes before its first call"
        hook = hooked(self._module)
        return None if hook is None else f"a hook on {hook} would see slices"

    def _plan(self, dims: Dims, whole: WholeCall, found: _Split) -> SplitPlan:
        outputs = dict(leaves(found.outputs))
        watches = any(
            isinstance(joint, Reduced) and (path[0] != 0 or outputs[path[1:]].grad_fn is None)
            for path, joint in found.joints.items()
        )
        return SplitPlan(dims, found.joints, whole.sides, found.draws, watches)

    def _ways(self) -> Iterator[Dims]:
        """Yield the way that the script declares, or else all that the shapes allow."""
        size = self._world.place.size
        declared = declared_dims(self._module, self._given)
        if declared is None:
            yield from candidates(self._given, size)
        elif (self._given.total(declared) or 0) >= size:
            yield declared

    def _refuted(self, dims: Dims) -> str:
        """Return what is wrong with a way on other weights and samples; nothing where it is right.

        Of the disturbances, the first decides that the unsplit call takes.
        """
        self._joints = None
        total = self._given.total(dims)
        assert total is not None
        failure = ""
        for how in disturbances(self._world.place.size, total):
            try:
                with disturbed_weights(self._module, how):
                    found = self._disturbed(dims, total, how)
            finally:
                self.restore()
            if not isinstance(found, _Failed):
                return found
            failure = failure or found.why
        return f"it cannot be checked with other weights and samples: {failure}"

    def _disturbed(self, dims: Dims, total: int, how: Disturbance) -> "str | _Failed":
        """Check a way on a disturbed call."""
        given = disturbed_inputs(self._given, dims, total, how)
        run = ModuleRun(self._forward, self._module, self._world.device)
        precise = DoublePrecision() if how.double else nullcontext()
        # A full batch with a graph may take more memory than there is.
        grad = torch.is_grad_enabled() and how.samples is not None
        failure, whole, expected = "", None, None
        try:
            with precise, eagerly(self._module, when=True):
                whole = run.whole(given, grad=grad, records=self._draws)
                expected = self._gradients(whole.tensors, given) if grad else None
            if not all(bool(torch.isfinite(one).any()) for one in whole.outputs.values() if one.numel()):
                failure = "its outputs are not finite"
        except Exception as error:  # noqa: BLE001 - a model may not take other samples; then others are tried
            failure = _in_one_line(error)
        if not self._agreed(not failure):
            return _Failed(failure or "another worker's failed")
        assert whole is not None
        run.restore()
        with precise:
            found = self._split(run, given, dims, whole, grad=grad, keeps=True)
            if isinstance(found, str):
                return found
            if grad:
                return self._other_gradients(found, given, expected)
        return ""

    def _gradients(self, tensors: Mapping[Path, Tensor], given: Given) -> Sequence[Tensor | None]:
        """Return gradients of a sum of all outputs, by random weights, of parameters and inputs."""
        own = torch.Generator().manual_seed(3)
        value = torch.zeros((), dtype=torch.float64, device=self._world.device)
        for _, tensor in sorted(tensors.items(), key=lambda item: repr(item[0])):
            weights = 0.5 + torch.rand(tensor.shape, generator=own, dtype=torch.float64)
            if tensor.requires_grad and tensor.is_floating_point():
                value = value + (tensor * weights.to(tensor.device)).sum()
        leaf = self._leaves(given)
        if not value.requires_grad or not leaf:
            return [None] * len(leaf)
        return list(self._gradient(value, leaf, allow_unused=True))

    def _leaves(self, given: Given) -> list[Tensor]:
        learning = [one for one in self._module.parameters() if one.requires_grad]
        return [*learning, *(tensor for _, tensor in given.tensors() if tensor.requires_grad)]

    def _other_gradients(self, found: _Split, given: Given, expected: Any) -> str:
        """Return what is wrong with the gradients of a split call; nothing where they are right."""
        value = outcome(self._module, found.outputs, tuple(self._sides))
        failure = ""
        gradients: Sequence[Tensor | None] = ()
        try:
            gradients = self._gradients(dict(leaves(value)), given)
        except Exception as error:  # noqa: BLE001 - as the forward of a slice
            failure = _in_one_line(error)
        if not self._agreed(not failure):
            return failure or "the backward of another worker's slice failed"
        scale = largest(*(one for one in expected if one is not None))
        for own, whole in zip(gradients, expected, strict=True):
            if not self._agreed((own is None) == (whole is None)):
                return "its slices have gradients of other parameters"
            if own is None or whole is None:
                continue
            mean = own.contiguous()
            self._world.all_reduce(mean)
            mean.div_(self._world.place.size)
            if not self._agreed(close(mean, whole, scale=scale)):
                return "its gradients are not the mean of those of slices: its backward compares samples"
        return ""

    def _split(
        self,
        run: ModuleRun,
        given: Given,
        dims: Dims,
        whole: WholeCall,
        *,
        grad: bool | None = None,
        keeps: bool = False,
    ) -> _Split | str:
        """Return what came of the split call if it is the unsplit one, else what is wrong with it.

        Args:
            run: runs the unsplit call.
            given: the arguments.
            dims: the way.
            whole: the results of the unsplit call.
            grad: whether a graph is made; None for as the script has it.
            keeps: whether the ways to put outputs together that are left are kept for the next check.
        """
        total = given.total(dims)
        assert total is not None
        cut = Cut(self._world, total)
        draws = not run.drawn.same(whole.drawn)
        why: str | _Split = ""
        for inner in (False, True):
            mode = FoundDraws(cut, whole.draws, inner=inner) if draws else None
            with torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
                why = self._one_split(run, given, dims, whole, cut, mode, keeps=keeps)
            if isinstance(why, _Split) or mode is None or not mode.has_flattened:
                break
            run.restore()
        return why

    def _one_split(
        self,
        run: ModuleRun,
        given: Given,
        dims: Dims,
        whole: WholeCall,
        cut: Cut,
        mode: FoundDraws | None,
        *,
        keeps: bool,
    ) -> _Split | str:
        failure, outputs = "", None
        watches = any(_may_be_reduced(tensor, cut.total) for tensor in whole.outputs.values())
        with watching_reductions(when=watches) as watching:
            try:
                with eagerly(self._module, when=keeps), watching or nullcontext():
                    outputs = call_slice(self._forward, self._module, given, cut, dims, draws=mode)
            except Exception as error:  # noqa: BLE001 - a slice may be anything to a module
                failure = _in_one_line(error)
            if not self._agreed(not failure):
                return failure or "another worker's slice failed"
            found = self._compared(run, whole, outputs, cut, keeps=keeps)
        if isinstance(found, str):
            untold = "" if mode is None or not mode.untold else f" ({'; '.join(sorted(mode.untold))})"
            return found + untold
        joints, result = found
        return _Split(joints, result, None if mode is None else mode.plan())

    def _compared(
        self, run: ModuleRun, whole: WholeCall, outputs: Any, cut: Cut, *, keeps: bool
    ) -> tuple[Mapping[Path, Joint], Any] | str:
        value = outcome(self._module, outputs, whole.sides)
        parts = dict(leaves(value))
        if not self._agreed(
            parts.keys() == whole.outputs.keys() and run.before.left().keys() <= set(whole.sides)
        ):
            return "its outputs have another structure"
        number = self._number_of_slice(run, whole, outputs, cut.total)
        if number:
            return number
        joints: dict[Path, Joint] = {}
        together: dict[Path, Tensor] = {}
        left: dict[Path, Sequence[Joint]] = {}
        for path, part in parts.items():
            found = self._joints_of(path, whole.outputs[path], part, cut, whole.scale, all_of_them=keeps)
            if not found:
                return f"its output{text(path[1:])} is not made of those of the slices"
            left[path] = [joint for joint, _ in found]
            joints[path], together[path] = found[0]
        buffer = differing_buffer(run.before.buffers(), whole.buffers)
        if not self._agreed(buffer is None):
            return f"its buffers differ: it keeps statistics of its slice ({buffer or 'on another worker'})"
        if not self._agreed(Drawn.now(self._world.device).same(whole.drawn)):
            return "it draws random numbers in a way that cannot be split"
        if keeps:
            self._joints, self._sides = left, whole.sides
        result, kept = mapped(value, lambda path, _: together[path])
        leave(self._module, kept)
        return joints, result

    def _number_of_slice(self, run: ModuleRun, whole: WholeCall, outputs: Any, total: int) -> str:
        """Return which number beside the tensors may be a slice's, on any rank; nothing if none may."""
        place = returned_number(whole.returned, outputs, total)
        if not self._agreed(place is None):
            return f"its output{place or ''} is a number, which a slice may make otherwise"
        name = kept_of_slice(whole.left, changed(run.left, left_behind(self._module)), total)
        if not self._agreed(name is None):
            return f"it keeps a number, which a slice may make otherwise ({name or 'on another worker'})"
        return ""

    def _joints_of(
        self, path: Path, whole: Tensor, part: Tensor, cut: Cut, scale: float, *, all_of_them: bool
    ) -> list[tuple[Joint, Tensor]]:
        """Return the ways to put an output together that give the unsplit one: the first, or all."""
        possible = list(joints_for(whole, part, cut))
        if self._joints is not None:
            allowed = self._joints.get(path, ())
            possible = [one for one in possible if _kind(one) in map(_kind, allowed)]
        if not self._agreed_on([_kind(one) for one in possible]):
            return []
        right: list[tuple[Joint, Tensor]] = []
        for joint in possible:
            together = joint.put_together(part, cut)
            if self._agreed(close(together, whole, scale=scale)):
                right.append((joint, together))
                if not all_of_them:
                    break
        return right

    def _agreed(self, here: bool) -> bool:  # noqa: FBT001 - it is what all ranks are asked for
        flag = torch.tensor([float(here)], dtype=torch.float64, device=self._world.device)
        self._world.all_reduce(flag, op="min")
        return bool(flag.item())

    def _agreed_on(self, value: Any) -> bool:
        return self._agreed(value == self._world.broadcast_object(value))


@dataclass(frozen=True, slots=True)
class _Failed:
    """An unsplit call that a model did not take.

    Args:
        why: what it raised.
    """

    why: str


_DRAWS = "it draws other random numbers each time it is called"


def _may_be_reduced(tensor: Tensor, total: int) -> bool:
    """Return whether an output may be a sum or a mean over samples."""
    return not any(size % total == 0 for size in tensor.shape)


def _kind(joint: Joint) -> Any:
    """Return a way to put outputs together without what depends on a batch's layout in memory."""
    return replace(joint, order=()) if isinstance(joint, Concatenated) else joint


def _in_one_line(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = next((one for one in reversed(frames) if is_users(one.filename)), None)
    at = "" if where is None else f" ({FilePath(where.filename).name}:{where.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{at}"
