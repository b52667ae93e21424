"""Runs a call of the whole batch for comparison, on every rank, and takes back what it changed."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep.autopilot.draw_plans import RecordedDraw
from samestep.autopilot.draws import RecordedDraws
from samestep.autopilot.guards import Attributes, changed, left_behind
from samestep.autopilot.plans import Dims, Given
from samestep.autopilot.quiet import quiet
from samestep.autopilot.reached import PLAIN, fields_of, is_compiled, is_record, walked
from samestep.autopilot.sample_reads import Reads, SampleReads
from samestep.autopilot.sides import outcome
from samestep.autopilot.slice_call import WRITES_INPUT, Forward, versions_of
from samestep.autopilot.state import Changeable, Side, restore_records
from samestep.watch.drawn import Drawn
from samestep.watch.tree import Path, leaves

RELATIVE = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""The largest difference that rounding makes, of the largest value. Single precision: 1e-4."""
_OF_SCALE = {torch.float64: 1e-11, torch.complex128: 1e-11, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""The same, of the scale of what it was computed from: values may cancel. Single precision: 1e-6."""


@dataclass(frozen=True, slots=True)
class WholeCall:
    """The results of a call of the whole batch.

    Args:
        outputs: copies of the tensors that it returned, and left in attributes.
        tensors: the same with their graphs; none where gradients were off.
        sides: the attributes in which it left tensors.
        buffers: the buffers after it.
        drawn: the state of the random generators after it.
        returned: the outputs as they were given.
        left: what it left beside tensors.
        draws: the random draws it made.
        writes: why it cannot be split, if it writes into its arguments, into its parameters, or into buffers
            without an effect that could be compared.
        printed: whether it printed.
        scale: the largest value among outputs, inputs and parameters: what rounding is compared with.
        reads: what it read of its samples.
    """

    outputs: Mapping[Path, Tensor]
    tensors: Mapping[Path, Tensor]
    sides: tuple[Side, ...]
    buffers: Mapping[str, Tensor]
    drawn: Drawn
    returned: Any
    left: Attributes
    draws: Sequence[RecordedDraw]
    writes: str
    printed: bool
    scale: float
    reads: Reads

    @property
    def flaw(self) -> str:
        """Why nothing can be compared with these results; empty where something can."""
        finite = (bool(torch.isfinite(one).any()) for one in self.outputs.values() if one.numel())
        return "" if all(finite) else "its outputs are not finite"


class ModuleRun:
    """Runs calls of one module, each from the same state of module and generators.

    Args:
        forward: runs the module.
        module: the module.
        device: of this rank.
    """

    def __init__(self, forward: Forward, module: nn.Module, device: torch.device) -> None:
        self._forward, self.module, self._device = forward, module, device
        self.before = Changeable(module)
        self.drawn = Drawn.now(device)
        self.left = left_behind(module)
        self.dims: Dims = {}
        """The way to split that calls are computed for: their reads of samples are recorded; or empty."""

    def restore(self) -> None:
        """Leave the module and the generators as they were at first."""
        self.before.restore()
        self.drawn.restore()

    def recorded(self, given: Given, *, grad: bool = False) -> WholeCall | None:
        """As `whole`, with the shapes of random draws; None if it draws others when they are recorded."""
        whole = self.whole(given, grad=grad)
        if self.drawn.same(whole.drawn):
            return whole
        self.restore()
        again = self.whole(given, grad=grad, records=True)
        return again if again.drawn.same(whole.drawn) else None

    def _writes(
        self,
        *,
        is_same: bool,
        parameters: Sequence[float],
        versions: Sequence[int | None],
    ) -> str:
        if not is_same:
            return f"it {WRITES_INPUT}"
        if _sums(self.module) != parameters:
            return "it writes into its parameters"
        name = self.before.rewritten(versions)
        return "" if name is None else f"it writes to {name}, and what it writes could not be compared"

    def whole(self, given: Given, *, grad: bool = False, records: bool = False) -> WholeCall:
        """Return the results of a call of the whole batch; the module stays as it leaves it.

        Args:
            given: its arguments; they are not changed.
            grad: whether a graph is made.
            records: whether the shapes of random draws are recorded; compiled code is run eagerly then.
        """
        recorder = RecordedDraws() if records else None
        copied = given.copied()
        own = given if grad else copied
        form, records_in = form_of(own), records_of(own)
        parameters, versions, given_versions = _sums(self.module), self.before.versions(), versions_of(own)
        reads = SampleReads()
        reads.follow(tensor for path, tensor in own.tensors() if path in self.dims)
        with (
            torch.set_grad_enabled(grad),
            quiet() as printed,
            eagerly(self.module, when=records),
            recorder or nullcontext(),
            reads if self.dims else nullcontext(),
        ):
            returned = self._forward(self.module, *own.args, **own.kwargs)
        is_same = form_of(own) == form and versions_of(own) == given_versions
        restore_records(records_in)
        sides = tuple(self.before.left())
        found = dict(leaves(outcome(self.module, returned, sides)))
        return WholeCall(
            outputs={path: _copied(tensor) for path, tensor in found.items()},
            tensors=found if grad else {},
            sides=sides,
            buffers=self.before.buffers(),
            drawn=Drawn.now(self._device),
            returned=returned,
            left=changed(self.left, left_behind(self.module)),
            draws=() if recorder is None else tuple(recorder.shapes),
            writes=self._writes(
                is_same=is_same and copied.same(given), parameters=parameters, versions=versions
            ),
            printed=printed.any,
            scale=largest(
                *found.values(), *(tensor for _, tensor in given.tensors()), *self.module.parameters()
            ),
            reads=reads.found,
        )


def form_of(given: Given) -> list[Any]:
    """Return what a call may change of its arguments beside tensors: lengths, keys, numbers, fields."""
    found: list[Any] = []
    for key, value in walked("", (given.args, dict(given.kwargs))):
        sized = len(value) if isinstance(value, (list, dict, set, deque)) else None
        found.append((key, value if isinstance(value, PLAIN) else id(type(value)), sized))
        if is_record(value):
            found.append(sorted((name, id(one)) for name, one in fields_of(value).items()))
    return found


def records_of(given: Given) -> list[tuple[Any, dict[str, Any]]]:
    """Return the records among the arguments, which are the script's own, with their fields."""
    values = (value for _, value in walked("", (given.args, dict(given.kwargs))))
    return [(one, fields_of(one)) for one in values if not isinstance(one, PLAIN) and is_record(one)]


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy, in the layout of the tensor, where that is one without memory of its own."""
    value = tensor.detach()
    expanded = [dim for dim in range(value.dim()) if value.stride(dim) == 0 and value.size(dim) > 1]
    sizes = value.shape
    for dim in expanded:
        value = value.narrow(dim, 0, 1)
    return value.clone().expand(sizes) if expanded else value.clone()


def _sums(module: nn.Module) -> list[float]:
    """Return two sums over each parameter, to find out whether it is written to."""
    found = []
    for one in module.parameters():
        if one.numel():
            values = one.detach()
            found += [float(values.sum().abs()), float(values.abs().sum())]
    return found


def close(one: Tensor, other: Tensor, *, scale: float = 0.0) -> bool:
    """Return whether two tensors are equal but for rounding.

    Args:
        one: a tensor.
        other: what it should be.
        scale: the size of the values that they were computed from, which may have cancelled.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.numel():
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    a, b = one.detach(), other.detach()
    relative = RELATIVE.get(one.dtype, 1e-4)
    least = max(relative * largest(b), _OF_SCALE.get(one.dtype, 1e-6) * scale)
    return torch.allclose(a, b, rtol=relative, atol=least, equal_nan=True)


def largest(*tensors: Tensor) -> float:
    """Return the largest finite absolute value of floating-point tensors; 0 if there is none."""
    found = 0.0
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            absolute = tensor.detach().abs()
            finite = absolute[torch.isfinite(absolute)]
            found = max(found, float(finite.max()) if finite.numel() else 0.0)
    return found


def differing_buffer(kept: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> str | None:
    """Return the name of a buffer that differs by more than rounding, if there is one.

    A running mean that is zero but for rounding is compared with the spread of what it is the mean of.
    """
    for name, value in whole.items():
        owner = name.rpartition(".")[0]
        variance = whole.get(f"{owner}.running_var" if owner else "running_var")
        scale = largest(variance) ** 0.5 if variance is not None else 0.0
        if name not in kept or not close(kept[name], value, scale=scale):
            return name
    return None


@contextmanager
def eagerly(module: nn.Module, *, when: bool) -> Iterator[None]:
    """Let compiled code of a module run as if it were not compiled."""
    if not (when and is_compiled(module)):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
