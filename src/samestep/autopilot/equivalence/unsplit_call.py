"""Runs unsplit calls for comparison, on every rank, and restores the state that they change."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence.effects import quiet
from samestep.autopilot.equivalence.positions import CheckedPositions, PositionTrace, address_of
from samestep.autopilot.equivalence.rounding import (
    Difference,
    ResultPrecision,
    close,
    difference,
    largest,
    unobserved_precision,
)
from samestep.autopilot.split.call_arguments import CallArguments, Dims
from samestep.autopilot.split.call_plans import outcome
from samestep.autopilot.split.guards import Attributes, changed, python_state, state_of
from samestep.autopilot.split.random_draws import DrawRecord, DrawRecorder
from samestep.autopilot.split.slice_call import WRITES_INPUT, Forward, versions_of
from samestep.autopilot.split.slice_context import unseen_by_layers
from samestep.autopilot.state.reachable_state import PLAIN, is_compiled, reached
from samestep.autopilot.state.sample_reads import Reads, SampleReads
from samestep.autopilot.state.saved_state import SavedArguments, SavedState, SideOutput, stored_in_libraries
from samestep.hooks import module_parts
from samestep.hooks.object_graph import Key
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, leaves

SPARSE = "it returns a sparse tensor, and only dense ones are gathered from slices"
MAKES_LEAF = "it returns a tensor on which it has called requires_grad_"
"""The reason for a call whose script may differentiate its outputs with respect to that tensor."""


@dataclass(frozen=True, slots=True)
class UnsplitCall:
    """The results of an unsplit call."""

    outputs: Mapping[Path, Tensor]  # copies of the tensors that the call returned or assigned to attributes
    tensors: Mapping[Path, Tensor]  # the same tensors with their graphs; empty if gradients were disabled
    sides: tuple[SideOutput, ...]  # the attributes to which the call assigned tensors
    buffers: Mapping[str, Tensor]  # the buffers after the call
    drawn: RngState  # the state of the random generators after the call
    returned: Any  # the outputs as `forward` returned them
    left: Attributes  # the changed state beside tensors
    draws: Sequence[DrawRecord]  # the random draws of the call
    # the reason why it cannot be split, if it writes into its arguments, into its parameters, or into buffers
    # without an effect that could be compared, or if it makes a leaf of the graph
    writes: str
    # whether the call has changed tensors of the module in place, beside those of batch norm, or an object of
    # a library
    rewrites: bool
    printed: bool  # whether the call printed
    scale: float  # the largest value among outputs, inputs and parameters, as a reference for rounding
    precision: torch.dtype  # the coarsest precision in which the call computed
    reads: Reads  # the values that the call read from its samples

    @property
    def flaw(self) -> str:
        """The reason why nothing can be compared with these results; empty if there is none."""
        outputs = ((path[0] != 0, output) for path, output in self.outputs.items() if output.numel())
        # An attribute may hold a constant of -inf for masked scores.
        finite = (bool((output.isfinite() | (is_side & output.isinf())).any()) for is_side, output in outputs)
        return "" if all(finite) else "its outputs are not finite"

    def are_close(self, result: Tensor, expected: Tensor) -> bool:
        """Return whether results of two computations of this call are equal but for rounding."""
        return close(result, expected, scale=self.scale, precision=self.precision)

    def difference(self, result: Tensor, expected: Tensor) -> Difference | None:
        """Return how far results of two computations of this call are apart."""
        return difference(result, expected, scale=self.scale, precision=self.precision)


class ModuleRun:
    """Runs calls of one module, each from the same state of module and generators."""

    def __init__(self, forward: Forward, module: nn.Module, device: torch.device) -> None:
        self._forward, self.module, self._device = forward, module, device
        self.before = SavedState(module, saves_weights=True)
        self.drawn = RngState.now(device)
        self._of_libraries: dict[Key, Any] = {}
        self.left = self.state()
        self.has_beside = (
            False  # whether another thread has drawn random numbers of Python or NumPy meanwhile
        )
        self.dims: Dims = {}  # the way to split whose sample reads are recorded; empty for none

    def drawn_now(self) -> RngState:
        """Return the present state of the generators."""
        return RngState.now(self._device)

    def state(self) -> Attributes:
        """Return the present state of the module beside tensors, that of objects of libraries included."""
        stored = stored_in_libraries(reached(self.module))
        plain = {key: value for key, value in stored if isinstance(value, PLAIN)}
        self._of_libraries = {**plain, **state_of(stored)}
        return {**python_state(self.module), **self._of_libraries}

    def restore(self) -> None:
        """Restore the initial state of the module and the generators."""
        self.before.restore()
        self.drawn.restore()

    def recorded(
        self, arguments: CallArguments, *, grad: bool = False, precise: CheckedPositions | None = None
    ) -> UnsplitCall | None:
        """Return the results of `unsplit`, with the random draws; None if recording changes the draws."""
        whole = self.unsplit(arguments, grad=grad, precise=precise)
        if self.drawn.same(whole.drawn):
            return whole
        self.restore()
        again = self.unsplit(arguments, grad=grad, records=True, precise=precise)
        if again.drawn.same(whole.drawn):
            return again
        # Recording may change torch's draws, but a call repeats those of Python and NumPy.
        self.has_beside = _has_other_threads() and not again.drawn.same_on_host(whole.drawn)
        return None

    def unsplit(
        self,
        arguments: CallArguments,
        *,
        grad: bool = False,
        records: bool = False,
        precise: CheckedPositions | None = None,
        trace: PositionTrace | None = None,
    ) -> UnsplitCall:
        """Return the results of an unsplit call; do not restore the module.

        Args:
            arguments: the arguments of the call; they are not changed.
            grad: whether a graph is built.
            records: whether the shapes of random draws are recorded; compiled code then runs eagerly.
            precise: the context that computes the call, without the bookkeeping, in another precision.
            trace: records the uses of the inputs as positions; compiled code then runs eagerly.
        """
        recorder, copied = DrawRecorder() if records else None, arguments.copied()
        used = arguments if grad else copied
        kept, versions_in = SavedArguments(used.args, used.kwargs), versions_of(used)
        weights = [*module_parts.parameters(self.module), *self.before.held_weights]
        sums, versions = _sums(weights), self.before.versions()
        # A limit of a norm may leave these weights as they are, and not later ones.
        storages = {address_of(weight) for weight in weights} - {0}
        runs_eagerly = records or trace is not None or not is_compiled(self.module)
        precision = precise.precision if precise is not None else None
        observed = ResultPrecision() if runs_eagerly and precision is None else None
        reads = SampleReads(watches=precise is not None)
        reads.follow(used.samples(self.dims))
        if trace is not None:
            trace.follow(used.tensors())
        with (
            torch.set_grad_enabled(grad),
            quiet() as printed,
            eagerly(self.module, when=runs_eagerly),
            observed or nullcontext(),
            precise or nullcontext(),
            trace or nullcontext(),
            recorder or nullcontext(),
            self._recording(reads, precise),
        ):
            try:
                returned = self._forward(self.module, *used.args, **used.kwargs)
            except BaseException:
                kept.restore()
                raise
        name, writes = self.before.rewritten(versions), ""
        if kept.are_changed() or versions_of(used) != versions_in or not copied.same(arguments):
            writes = f"it {WRITES_INPUT}"
        elif _sums(weights) != sums or (precise is not None and precise.written & storages):
            writes = "it writes into its parameters"
        elif name is not None:
            writes = f"it writes to {name}, and what it writes could not be compared"
        kept.restore()
        operands = [*dict(arguments.tensors()).values(), *module_parts.parameters(self.module)]
        if observed is not None:
            precision = observed.coarsest(self._device)
        elif precision is None:
            precision = unobserved_precision(self._device, operands)
        sides = tuple(self.before.left())
        results = dict(leaves(outcome(self.module, returned, sides)))
        if any(map(_is_sparse, results.values())):
            writes, results = writes or SPARSE, {}
        if grad and not writes and _has_leaf(results, [*operands, *dict(used.tensors()).values()]):
            writes = MAKES_LEAF
        left = changed(self.left, self.state())
        return UnsplitCall(
            outputs={path: _copied(tensor) for path, tensor in results.items()},
            tensors=results if grad else {},
            sides=sides,
            buffers=self.before.buffers(),
            drawn=self.drawn_now(),
            returned=returned,
            left=left,
            draws=() if recorder is None else tuple(recorder.shapes),
            writes=writes,
            rewrites=self.before.are_rewritten() or not left.keys().isdisjoint(self._of_libraries),
            printed=printed.any,
            scale=largest(*results.values(), *operands),
            precision=precision,
            reads=reads.found,
        )

    def _recording(
        self, reads: SampleReads, precise: CheckedPositions | None
    ) -> AbstractContextManager[object]:
        """Return the context that records reads of the call itself as calls of the run are computed."""
        if not self.dims:
            return nullcontext()
        return reads if precise is not None or is_compiled(self.module) else unseen_by_layers(reads)


def _has_other_threads() -> bool:
    """Return whether the script has other threads than the calling one."""
    current = threading.current_thread()
    return any(
        thread is not current and not thread.name.startswith("samestep-") for thread in threading.enumerate()
    )


def _is_sparse(tensor: Tensor) -> bool:
    return tensor.layout not in (torch.strided, torch.jagged)


def _has_leaf(results: Mapping[Path, Tensor], operands: Sequence[Tensor]) -> bool:
    """Return whether a call returns a tensor with a gradient that is neither computed nor an operand."""
    known = set(map(id, operands))
    return any(
        tensor.requires_grad and tensor.is_leaf and id(tensor) not in known for tensor in results.values()
    )


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor; expanded dimensions stay expanded."""
    value = tensor.detach()
    expanded = [dim for dim in range(value.dim()) if value.stride(dim) == 0 and value.size(dim) > 1]
    sizes = value.shape
    for dim in expanded:
        value = value.narrow(dim, 0, 1)
    return value.clone().expand(sizes) if expanded else value.clone()


def _sums(weights: Iterable[Tensor]) -> list[float]:
    """Return two sums over each weight, to detect whether it is written to."""
    sums = []
    for weight in weights:
        if weight.numel():
            values = weight.detach()
            sums += [abs(values.sum().item()), values.abs().sum().item()]
    return sums


def eagerly(module: nn.Module, *, when: bool) -> AbstractContextManager[Any]:
    """Run compiled code of a module eagerly, if `when` is set."""
    return torch.compiler.set_stance("force_eager") if when and is_compiled(module) else nullcontext()
