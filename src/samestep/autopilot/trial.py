"""The first call of each kind, made both ways: whole, and split; what comes out decides.

Whether a call can be split cannot be seen from its inputs: samples may be compared with each other, the first
dimension may be time, a loss may be a mean of unequal parts. So the first call of each kind is computed on
the whole batch, without gradients, and then split in each way that its shapes allow. A way is right if it
gives the outputs, leaves the buffers, and draws the random numbers of the whole call. If none is, calls of
this kind stay whole: every rank computes all of them, which is slower and right.
"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from samestep.autopilot.account import is_users
from samestep.autopilot.conditions import (
    Attributes,
    changed,
    hooked,
    left_behind,
    returned_number,
    told_of_slice,
)
from samestep.autopilot.cut import Cut
from samestep.autopilot.declared import declared_dims
from samestep.autopilot.draws import GlobalDraws
from samestep.autopilot.norms import over_all_ranks, over_each_slice
from samestep.autopilot.options import DEFAULTS, Options
from samestep.autopilot.plans import Dims, Given, Joint, SplitPlan, candidates, joints_for
from samestep.autopilot.recomputed import within_slice
from samestep.autopilot.sides import leave, outcome
from samestep.autopilot.state import Changeable, Side
from samestep.autopilot.streams import own_stream
from samestep.watch.drawn import Drawn
from samestep.watch.tree import Path, leaves, mapped, text
from samestep.world.world import World

Forward: TypeAlias = Callable[..., Any]
FEWER = "fewer samples than workers"
_TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Of the largest value; another way to cut a sum rounds otherwise. Single precision: 1e-4."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial came to."""

    plan: SplitPlan | None
    outputs: Any
    """Of the call, by the plan; nothing where there is none."""
    why: str = ""
    """Why there is no plan."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """What the whole call gave, and left."""

    outputs: Mapping[Path, Tensor]
    sides: tuple[Side, ...]
    buffers: Mapping[str, Tensor]
    drawn: Drawn
    returned: Any
    """The outputs as they were given."""
    left: Attributes
    """What it left beside tensors."""


class Trial:
    """The trial of one call.

    Args:
        forward: what runs the module.
        module: it.
        given: what it is called with.
        world: the ranks.
    """

    def __init__(self, forward: Forward, module: nn.Module, given: Given, world: World) -> None:
        self._forward, self._module, self._given, self._world = forward, module, given, world
        self._before = Changeable(module)
        self._drawn = Drawn.now(world.device)
        self._left = left_behind(module)
        self._is_writing = False

    def run(self) -> Verdict:
        """Try all ways; leave the module and the generators as the way that was right does, or as before."""
        hook = hooked(self._module)
        if hook is not None:
            return Verdict(None, None, f"a hook on {hook} would see slices")
        whole = self._whole()
        if self._is_writing:
            self.take_back()
            return Verdict(None, None, "it writes into what it is given")
        reasons = []
        for dims in self._ways():
            found = self._refuted_awake(dims)
            if not found:
                self.take_back()
                tried = self._split(dims, whole)
                if isinstance(tried, Verdict):
                    return tried
                found = tried
            reasons.append(found)
        self.take_back()
        first = next((tensor.size(0) for _, tensor in self._given.tensors()), 0)
        likeliest = reasons[0] if reasons and first >= self._world.place.size else FEWER
        return Verdict(None, None, likeliest)

    def _ways(self) -> Iterator[Dims]:
        """Yield the way that the script says, or else all that the shapes allow."""
        size = self._world.place.size
        said = declared_dims(self._module, self._given)
        if said is None:
            yield from candidates(self._given, size)
        elif (self._given.total(said) or 0) >= size:
            yield said

    def take_back(self) -> None:
        """Leave the module and the generators as they were before."""
        self._before.restore()
        self._drawn.restore()

    def _whole(self) -> _Whole:
        with (
            torch.no_grad(),
            FilePath(os.devnull).open("w") as silence,
            redirect_stdout(silence),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # the split call will say it, if it is so there too
            given = self._given.copied()
            returned = self._forward(self._module, *given.args, **given.kwargs)
            self._is_writing = not given.same(self._given)
        sides = tuple(self._before.left())
        found = leaves(outcome(self._module, returned, sides))
        outputs = {path: tensor.detach().clone() for path, tensor in found}
        left = changed(self._left, left_behind(self._module))
        drawn = Drawn.now(self._world.device)
        return _Whole(outputs, sides, self._before.buffers(), drawn, returned, left)

    def _refuted_awake(self, dims: Dims) -> str:
        """Return what is wrong with a way once no weight is zero; nothing where none is.

        Weights that begin as zeros hide what stands before them: both ways give the same zeros.
        """
        asleep = [
            parameter
            for name, parameter in self._module.named_parameters()
            if not name.endswith("bias") and parameter.numel() and not parameter.detach().any()
        ]
        if not asleep:
            return ""
        own = torch.Generator().manual_seed(0)
        self.take_back()
        try:
            for parameter in asleep:  # .data: a graph that an earlier call has left is not told
                noise = torch.randn(parameter.shape, generator=own, dtype=torch.float64) * 0.1
                parameter.data.copy_(noise)
            whole = self._whole()
            self.take_back()
            found = self._split(dims, whole)
        finally:
            for parameter in asleep:
                parameter.data.zero_()
        return found if isinstance(found, str) else ""

    def _split(self, dims: Dims, whole: _Whole) -> Verdict | str:
        """Return the verdict if the split call is the whole one, else what is wrong with it."""
        total = self._given.total(dims)
        assert total is not None
        cut = Cut(self._world, total)
        draws = not self._drawn.same(whole.drawn)
        failure, outputs, untold = "", None, ""
        try:
            outputs, mode = split(self._forward, self._module, self._given, cut, dims, draws=draws)
            untold = (
                f" ({', '.join(sorted(mode.untold))} draws by its values)" if mode and mode.untold else ""
            )
        except Exception as error:  # noqa: BLE001 - a slice may be anything to a module; then it runs whole
            failure = _in_one_line(error)
        if not self._agreed(not failure):
            return failure or "another worker's slice failed"
        found = self._compared(whole, outputs, SplitPlan(dims, {}, whole.sides, draws), cut)
        return found + untold if isinstance(found, str) else found

    def _compared(self, whole: _Whole, outputs: Any, plan: SplitPlan, cut: Cut) -> Verdict | str:
        value = outcome(self._module, outputs, plan.sides)
        parts = dict(leaves(value))
        if not self._agreed(
            parts.keys() == whole.outputs.keys() and self._before.left().keys() <= set(plan.sides)
        ):
            return "its outputs have another structure"
        number = self._number_of_slice(whole, outputs, cut.total)
        if number:
            return number
        joints: dict[Path, Joint] = {}
        together: dict[Path, Tensor] = {}
        for path, part in parts.items():
            found = self._joint(whole.outputs[path], part, cut)
            if found is None:
                return f"its output{text(path[1:])} is not made of those of the slices"
            joints[path], together[path] = found
        kept = self._before.buffers()
        if not self._agreed(all(close(kept[name], value) for name, value in whole.buffers.items())):
            return "its buffers differ: it keeps statistics of its slice"
        if not self._agreed(Drawn.now(self._world.device).same(whole.drawn)):
            return "it draws random numbers in a way that cannot be shared out"
        result, left = mapped(value, lambda path, _: together[path])
        leave(self._module, left)
        return Verdict(replace(plan, joints=joints), result)

    def _number_of_slice(self, whole: _Whole, outputs: Any, total: int) -> str:
        """Return which number beside the tensors may be a slice's, on any rank; nothing if none may."""
        place = returned_number(whole.returned, outputs, total)
        if not self._agreed(place is None):
            return f"its output{place or ''} is a number, which a slice may make otherwise"
        name = told_of_slice(whole.left, changed(self._left, left_behind(self._module)), total)
        if not self._agreed(name is None):
            return f"it keeps a number, which a slice may make otherwise ({name or 'on another worker'})"
        return ""

    def _joint(self, whole: Tensor, part: Tensor, cut: Cut) -> tuple[Joint, Tensor] | None:
        possible = list(joints_for(whole, part, cut))
        if not self._agreed_on([type(one).__name__ for one in possible]):
            return None
        for joint in possible:
            together = joint.put_together(part, cut)
            if self._agreed(close(together, whole)):
                return joint, together
        return None

    def _agreed(self, here: bool) -> bool:  # noqa: FBT001 - it is what all ranks are asked for
        flag = torch.tensor([float(here)], device=self._world.device)
        self._world.all_reduce(flag, op="min")
        return bool(flag.item())

    def _agreed_on(self, value: Any) -> bool:
        return self._agreed(value == self._world.broadcast_object(value))


def split(
    forward: Forward,
    module: nn.Module,
    given: Given,
    cut: Cut,
    dims: Dims,
    *,
    draws: bool,
    options: Options = DEFAULTS,
) -> tuple[Any, GlobalDraws | None]:
    """Return the outputs of this rank's slice, before they are put together, and what drew."""
    own = given.cut(cut, dims)
    with as_slice(cut, draws=draws, options=options) as mode:
        return forward(module, *own.args, **own.kwargs), mode


@contextmanager
def as_slice(cut: Cut, *, draws: bool, options: Options = DEFAULTS) -> Iterator[GlobalDraws | None]:
    """Within, what is normalised and drawn is part of a whole batch; yields what sees the draws."""
    norms = over_all_ranks(cut.world) if options.batch_norm == "global" else over_each_slice(cut)
    mode = GlobalDraws(cut) if draws and options.random == "global" else None
    own = own_stream(cut.world) if draws and mode is None else nullcontext()
    with (
        within_slice(partial(as_slice, cut, draws=draws, options=options)),
        norms,
        own,
        mode or nullcontext(),
    ):
        yield mode


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal but for rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.numel():
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    a, b = one.detach(), other.detach()
    finite = b[torch.isfinite(b)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    rtol = _TOLERANCE.get(one.dtype, 1e-4)
    return torch.allclose(a, b, rtol=rtol, atol=rtol * largest, equal_nan=True)


def _in_one_line(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = next((one for one in reversed(frames) if is_users(one.filename)), None)
    at = "" if where is None else f" ({FilePath(where.filename).name}:{where.lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{at}"
