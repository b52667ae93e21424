"""Computes this rank's part of a check, a call or a backward; all ranks run it equally."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samestep.autopilot.equivalence.check import AT_ONCE, EquivalenceCheck, Pace, Verdict
from samestep.autopilot.equivalence.effects import quiet
from samestep.autopilot.equivalence.split_comparison import SplitTrace
from samestep.autopilot.equivalence.unsplit_call import eagerly
from samestep.autopilot.helpers.messages import RowsOfTensor
from samestep.autopilot.helpers.signal_handlers import is_of_signal
from samestep.autopilot.helpers.team import TeamWorld
from samestep.autopilot.split.call_arguments import CallArguments, Dims, depth_of_list
from samestep.autopilot.split.call_plans import (
    ConcatenatedOutput,
    Gathering,
    SplitPlan,
    assign_side_outputs,
    batch_split,
    digest_of,
    gather_outcome,
    outcome,
    slice_side_outputs,
    with_samples,
)
from samestep.autopilot.split.gradients import (
    SliceGradients,
    gradients_of,
    leaves_of,
    sparse_places,
    sums,
    unaveraged,
)
from samestep.autopilot.split.loss_reduction import watching_reductions
from samestep.autopilot.split.operations import OperationRecorder, check_operations
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.shared_memory import SHARES, View, have_values_of, tensors_beside, views_in
from samestep.autopilot.split.slice_call import Forward, call_slice, check_draws
from samestep.autopilot.split.slice_context import unseen_by_layers
from samestep.autopilot.state.sample_reads import GuardedReads
from samestep.autopilot.state.saved_state import SideOutput, carried_by, own_attributes, version_of
from samestep.base.errors import UsageError
from samestep.hooks import module_parts
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, leaves, mapped
from samestep.hooks.thread_values import ThreadValue
from samestep.parallel.gradients.batch_norm import raise_now


class ReturnedTensors:
    """The whole tensors of a call's results, by the tensors that this rank's slice has given."""

    def __init__(self, parts_of_rank: CallArguments, whole: CallArguments, dims: Dims) -> None:
        arguments, parts = dict(leaves(whole.both)), leaves(parts_of_rank.both)
        self._arguments = {  # a sample in a list is no result
            id(part): arguments[path] for path, part in parts if depth_of_list(path, dims) is None
        }
        self._parts = parts_of_rank  # an identity is that of a tensor while this exists
        self._returned: dict[int, Tensor] = {}

    def united(self, parts: Any, whole: Any) -> Any:
        """Return whole results in which a tensor that the slice has given several times is one tensor."""
        by_path, first = dict(leaves(parts)), dict[tuple[int, Any], Tensor]()

        def united(path: Path, tensor: Tensor) -> Tensor:
            part = by_path[path]
            tensor = first.setdefault((id(part), tensor.shape), tensor)
            argument = self._arguments.get(id(part))
            if argument is not None and argument.shape == tensor.shape:
                self._returned[id(tensor)] = argument
            return tensor

        return mapped(whole, united)

    def is_argument(self, tensor: Tensor) -> bool:
        """Return whether a tensor of the results is an argument."""
        return id(tensor) in self._returned

    def for_script(self, whole: Any) -> Any:
        """Return the results with the arguments themselves; views become plain, to be detached in place."""
        plain = dict[int, Tensor]()

        def for_script(_: Path, tensor: Tensor) -> Tensor:
            if (argument := self._returned.get(id(tensor))) is not None:
                return argument
            is_view = not tensor.requires_grad and tensor._is_view()  # noqa: SLF001 - no public spelling
            return plain.setdefault(id(tensor), tensor.data if is_view else tensor)

        return mapped(whole, for_script)


PRINTS = "it prints when it is called, and would print values of slices"


@dataclass(eq=False, slots=True)
class CallGraph:
    """The graph of one call on this rank, from its inputs and weights to its whole outputs."""

    outputs: list[Tensor]
    """The outputs that have gradients, in order."""
    sources: list[Tensor]
    """The weights, and then the inputs that require gradients."""
    num_weights: int
    sparse: frozenset[int]
    """The places of weights that may get sparse gradients."""
    total: int
    """The number of samples."""
    rows: Sequence[RowsOfTensor | None]
    """The rows of each output of which each rank reads the gradients of its own; None where it reads all."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outputs of a call; on a helper those that the script gets are zeros in the shape of the whole."""

    outputs: Any
    """As the module returned them, for the whole batch."""
    sides: dict[Any, Any]
    """The side outputs for the whole batch."""
    graph: CallGraph | None
    sources: list[Tensor]
    """The tensors of this process of which the graph's sources are copies."""
    constants: frozenset[int] = frozenset()
    """The places of the graph's outputs that have no gradients in the script."""
    views: Mapping[Path, View] = field(default_factory=dict)
    """The outputs and side outputs that are views of others, of arguments or of tensors of the module."""


class RankSlices:
    """This rank's part of the split calls of a script; it `copies` arguments in memory that others write."""

    def __init__(self, world: TeamWorld, gradients: SliceGradients, *, copies: bool = False) -> None:
        self.world, self.gradients, self._copies = world, gradients, copies
        self.plans: dict[int, SplitPlan] = {}
        self.graphs: dict[int, CallGraph] = {}
        self.checks: dict[int, EquivalenceCheck] = {}
        """The checks that later calls continue, by the number of their plan."""

    def check(
        self,
        number: int,
        forward: Forward,
        module: nn.Module,
        arguments: CallArguments,
        declared: Dims | None,
        *,
        begins: bool,
        pace: Pace = AT_ONCE,
    ) -> Verdict | None:
        """Begin or continue a check whether calls can be split, and restore the module.

        Args:
            number: the number under which the check, and then its plan, is kept.
            forward: calls the module.
            module: the module, or its mirror.
            arguments: the arguments for the whole batch.
            declared: the way that the script declares; None for all ways that the shapes allow.
            begins: whether the check begins with this call.
            pace: the time that the check may take at this call; the main rank's counts.

        Returns:
            None if a later call has to continue it.

        Raises:
            OtherRankFailedError: the ranks have not computed the same: a mirror is not as the module.
            Exception: this rank has failed; the caller calls `TeamWorld.fail`.
        """
        check = None if begins else self.checks.get(number)
        self.checks.pop(number, None)
        with _without_graphs(module), quiet() as printed:
            if check is None:
                check = EquivalenceCheck(
                    without_exit(forward), module, arguments, self.world, declared=declared
                )
            else:
                check.begin_call(module, arguments)
            try:
                verdict = check.run(pace)
            finally:
                check.restore()
                check.end_call()
            self.world.end_check()
        if printed.any or (verdict is not None and verdict.printed):
            trace = SplitTrace() if verdict is None else verdict.trace
            return Verdict(None, why=PRINTS, trace=trace)
        if verdict is None:
            self.checks[number] = check
        elif verdict.plan is not None:
            self.plans[number] = verdict.plan
        return verdict

    def call(
        self,
        plan: SplitPlan,
        forward: Forward,
        module: nn.Module,
        weights: Sequence[Tensor],
        arguments: CallArguments,
        *,
        carried: Sequence[SideOutput] = (),
        before: RngState | None = None,
    ) -> CallResult:
        """Compute this rank's slice of a call; return the outputs of the whole batch on the main rank.

        Args:
            plan: the way to split it.
            forward: calls the module.
            module: the module, or its mirror.
            weights: its tensors that get gradients.
            arguments: the arguments for the whole batch.
            carried: the attributes of the module that hold tensors with a graph.
            before: the state of the random generators now, which must be the same after a call that draws no
                numbers; None not to compare it.

        Raises:
            OtherRankFailedError: the slice of another rank has failed; see `TeamWorld.fail`.
        """
        total = arguments.total(plan.dims)
        assert total is not None
        split = batch_split(self.world, plan.dims, total)
        inputs = _Inputs(arguments, plan, copies=self._copies)
        separate = arguments.changed(inputs.argument)
        states = tuple(dict.fromkeys((*plan.sides, *carried)))
        _, state = outcome(module, None, states)
        if states:
            assign_side_outputs(module, mapped(state, inputs.follow))
            slice_side_outputs(module, plan.gatherings, plan.sides, split)
            self._share_state(module, states, inputs, split)
        self.gradients.weights = set(map(id, weights))
        part = separate.sliced(split.for_main, plan.dims)  # its backward gathers gradients
        if self._copies:
            part = part.changed(_copied)
        returned = ReturnedTensors(part, arguments, plan.dims)
        finds_views = plan.has_views and not self._copies
        _, now = outcome(module, None, states)
        beside = tensors_beside(module, part, arguments, plan.dims, (None, now)) if finds_views else []
        with watching_reductions(when=plan.watches_reductions) as watching:
            with watching or nullcontext():
                outputs = self._own_outputs(plan, forward, module, part, split, before)
            parts = outcome(module, outputs, plan.sides)
            whole = gather_outcome(parts, plan.gatherings, split, name=type(module).__name__)
            views = _views(parts, whole, beside) if finds_views else {}
            outputs, sides = returned.united(parts, whole)
        assign_side_outputs(module, _with_originals(module, now, state, set(carried) - set(sides)))
        distinct: dict[int, tuple[Path, Tensor]] = {}
        for path, output in leaves((outputs, sides)):
            if output.requires_grad and not returned.is_argument(output):
                distinct.setdefault(id(output), (path, output))
        with_gradients = [*distinct.values()]
        if not self._copies:
            outputs, sides = returned.for_script((outputs, sides))
        if not with_gradients:
            return CallResult(outputs, sides, None, [], views=views)
        with_graph = [output for _, output in with_gradients]
        sparse = sparse_places(module, weights)
        read = [_rows_of(plan.gatherings.get(path), output, total) for path, output in with_gradients]
        graph = CallGraph(with_graph, [*weights, *inputs.copies], len(weights), sparse, total, read)
        sources = [*weights, *inputs.used_by(with_graph)]
        return CallResult(outputs, sides, graph, sources, inputs.constants(with_graph), views)

    def _share_state(
        self, module: nn.Module, states: Sequence[SideOutput], inputs: "_Inputs", split: BatchSplit
    ) -> None:
        """Sum the gradients of the tensors of a module that are no slices over the ranks."""
        _, state = outcome(module, None, states)
        whole = set(map(id, inputs.copies))
        shared = mapped(state, lambda _, tensor: split.shared(tensor) if id(tensor) in whole else tensor)
        assign_side_outputs(module, shared)

    def _own_outputs(
        self,
        plan: SplitPlan,
        forward: Forward,
        module: nn.Module,
        part: CallArguments,
        split: BatchSplit,
        before: RngState | None,
    ) -> Any:
        """Return the outputs of this rank's slice."""
        name = type(module).__name__
        draws = None if plan.draws is None else GlobalDraws(split, plan.draws)
        reads = unseen_by_layers(GuardedReads(plan.reads, name)) if plan.reads else None
        watches = plan.watches_operations and plan.operations is not None and draws is None
        recorder: OperationRecorder | None = OperationRecorder() if watches else None
        written = WrittenTensors(module, plan)
        observer = draws or recorder
        if observer is not None:
            observer.follow(with_samples(module, part, plan.dims, plan.sides))
        # Torch compiles nothing while operations are watched, nor later what it has met meanwhile.
        is_watched = observer is not None or plan.watches_reductions
        with recorder or nullcontext(), eagerly(module, when=is_watched):
            outputs = call_slice(without_exit(forward), module, part, split, draws=draws, reads=reads)
        written.agree(split)
        check_draws(name, draws, before if draws is None else None, self.world.device)
        if observer is not None and plan.operations is not None:
            check_operations(name, observer.operations, plan.operations)
        return outputs

    def backward(
        self, graph: CallGraph, of_outputs: Sequence[Tensor | None], *, retain: bool
    ) -> list[Tensor | None]:
        """Return the gradients of the graph's sources on the main rank, given those of its outputs."""
        both = zip(graph.outputs, of_outputs, strict=True)
        pairs = [(out, grad) for out, grad in both if grad is not None]
        outputs, weights = [out for out, _ in pairs], graph.sources[: graph.num_weights]
        with unaveraged(outputs), without_hooks(weights):
            gradients = gradients_of(outputs, graph.sources, [grad for _, grad in pairs], retain=retain)
        of_weights = sums(self.world, weights, gradients[: len(weights)], graph.sparse)
        return [*of_weights, *gradients[len(weights) :]]


class ExitsError(Exception):
    """A model has called `sys.exit`, in a check of it or for a slice."""


def without_exit(forward: Forward) -> Forward:
    """Return a forward whose exit is an error like any other: only an unsplit call ends the script.

    A model may end it for losses that only the disturbed weights of a check give.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except SystemExit as stop:
            if is_of_signal(stop):  # the script's own code, which is to end it
                raise
            raise ExitsError(f"it calls sys.exit({stop.code!r})") from stop

    return call


def _views(parts: Any, whole: Any, beside: Sequence[tuple[Tensor, Tensor]]) -> dict[Path, View]:
    """Return the views among the results of a slice.

    Raises:
        UsageError: those of the whole batch cannot be the same views.
    """
    views = views_in(dict(leaves(parts)), beside)
    if views is None or not have_values_of(views, whole):
        raise UsageError(SHARES)
    return views


def rows_of_inputs(arguments: CallArguments, plan: SplitPlan) -> dict[int, RowsOfTensor]:
    """Return the arguments of which each rank reads its own rows, by their ids."""
    leaves_of_call = [*leaves(arguments.both)]
    dims = {id(tensor): plan.dims.get(path) for path, tensor in leaves_of_call}
    whole = {id(tensor) for path, tensor in leaves_of_call if plan.dims.get(path) != dims[id(tensor)]}
    return {
        number: RowsOfTensor(dim)
        for number, dim in dims.items()
        if isinstance(dim, int) and number not in whole
    }


def _rows_of(gathering: Gathering | None, output: Tensor, total: int) -> RowsOfTensor | None:
    if not isinstance(gathering, ConcatenatedOutput) or gathering.inner or gathering.expanded:
        return None
    return RowsOfTensor(gathering.dim, output.size(gathering.dim) // total)


@contextmanager
def _without_graphs(module: nn.Module) -> Iterator[None]:
    """Detach the tensors that a module holds from earlier calls, whose backward a check must not run."""
    carried = carried_by(module)
    _, state = outcome(module, None, carried)
    assign_side_outputs(module, mapped(state, lambda _, tensor: tensor.detach()))
    try:
        yield
    finally:
        assign_side_outputs(module, state)


def _with_originals(
    module: nn.Module,
    copies: Mapping[SideOutput, Any],
    before: Mapping[SideOutput, Any],
    attributes: Iterable[SideOutput],
) -> dict[SideOutput, Any]:
    """Return the attributes in which a call has left `copies` of tensors, with those from `before` it.

    It may have assigned None to others, or a weight.
    """
    pairs = zip(leaves(copies), leaves(before), strict=True)
    originals = {id(copy): original for (_, copy), (_, original) in pairs}
    _, left = outcome(module, None, attributes)
    return {
        side: mapped(value, lambda _, tensor: originals.get(id(tensor), tensor))
        for side, value in left.items()
        if any(id(tensor) in originals for _, tensor in leaves(value))
    }


class _Inputs:
    """The inputs of a call that may get gradients, and copies of them at which the call's graph ends.

    Args:
        arguments: the arguments for the whole batch.
        plan: the way to split the call.
        copies: whether arguments are in memory that others write.
    """

    def __init__(self, arguments: CallArguments, plan: SplitPlan, *, copies: bool) -> None:
        self._arguments, self._plan, self._copies_memory = arguments, plan, copies
        self.copies: list[Tensor] = []
        self._originals: list[Tensor] = []

    @cached_property
    def _sliced(self) -> Collection[int]:
        """The ids of arguments of which only a slice is used; most calls have none with a gradient."""
        return rows_of_inputs(self._arguments, self._plan).keys()

    def argument(self, _: Path, tensor: Tensor) -> Tensor:
        """Return an argument without its graph; of one that is sliced only the slice is copied, later."""
        if not tensor.requires_grad:
            return tensor
        return self._without_graph(tensor, copies=self._copies_memory and id(tensor) not in self._sliced)

    def follow(self, _: Path, tensor: Tensor) -> Tensor:
        """Return a tensor without its graph, which gets a gradient if it can have one."""
        return self._without_graph(tensor, copies=self._copies_memory)

    def _without_graph(self, tensor: Tensor, *, copies: bool) -> Tensor:
        if not torch.is_grad_enabled() or not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.detach()
        value = tensor.detach()
        if copies or value.is_inference():  # which cannot get a gradient: kept by an evaluation
            value = value.clone()
        self.copies.append(value.requires_grad_())
        self._originals.append(tensor)
        return value

    def used_by(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs, those without their graph that no output depends on.

        An earlier backward may have freed that graph, and the call's backward must not enter it.
        """
        if not self.copies:
            return []
        used = set(map(id, leaves_of(*outputs)))
        pairs = zip(self.copies, self._originals, strict=True)
        return [original if id(copy) in used else original.detach() for copy, original in pairs]

    def constants(self, outputs: Sequence[Tensor]) -> frozenset[int]:
        """Return the places of the outputs that depend only on copies of tensors without gradients.

        A running mean that a module keeps as an attribute is one: each rank follows all states alike.
        """
        pairs = zip(self.copies, self._originals, strict=True)
        without = {id(copy) for copy, original in pairs if not original.requires_grad}
        if not without:
            return frozenset()
        leaves_by_output = enumerate(
            {id(leaf) for leaf in leaves_of(output) or [output]} for output in outputs
        )
        return frozenset(place for place, leaves_in in leaves_by_output if leaves_in <= without)


def _copied(_: Path, tensor: Tensor) -> Tensor:
    return tensor if tensor.requires_grad else tensor.clone()


_is_of_slice: ThreadValue[bool] = ThreadValue(default=False)
"""Whether this thread computes the gradients of a slice, or those that a split call's node will return."""


class _HookOfWhole:
    """A hook of the script on a gradient, which the gradient of a slice passes by, and a missing one.

    Torch has no node for a weight that a loss does not use; the node of a split call has all weights.
    """

    def __init__(self, hook: Callable[[Tensor], Tensor | None]) -> None:
        self._hook = hook
        self._counts = getattr(hook, "__module__", None) in _COUNTING

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        is_passed_by = _is_of_slice.get() or (gradient is None and not self._counts)
        return None if is_passed_by else self._hook(gradient)  # type: ignore[arg-type]


class _Arrival:
    """A hook that notes whether the gradient that comes to a weight is missing."""

    is_missing = False

    def __call__(self, gradient: Tensor | None) -> None:
        self.is_missing = gradient is None


class _HookAfterGradient:
    """A hook of the script on a weight that has got its gradient, which a missing one passes by."""

    def __init__(self, hook: Callable[[Tensor], None], arrival: _Arrival) -> None:
        self._hook, self._arrival = hook, arrival

    def __call__(self, weight: Tensor) -> None:
        if not (_is_of_slice.get() or self._arrival.is_missing):
            self._hook(weight)


_COUNTING = "torch.autograd.graph", __name__
"""The modules of hooks that get missing gradients, too: torch's on several tensors waits for each."""


def pass_by_hooks(tensors: Sequence[Tensor]) -> None:
    """Let gradients of slices, and missing ones, pass by the script's hooks on tensors.

    The hooks stay where they are: a backward of another thread may be calling them.
    """
    for tensor in tensors:
        if later := getattr(tensor, "_post_accumulate_grad_hooks", None):
            added = [key for key, hook in later.items() if not isinstance(hook, _HookAfterGradient)]
            if added:
                arrival = _Arrival()
                tensor.register_hook(arrival)  # type: ignore[no-untyped-call]
                later.update({key: _HookAfterGradient(later[key], arrival) for key in added})
        if hooks := tensor._backward_hooks:  # noqa: SLF001
            for key, hook in [*hooks.items()]:
                if not isinstance(hook, _HookOfWhole):
                    hooks[key] = _HookOfWhole(hook)


@contextmanager
def without_hooks(weights: Sequence[Tensor]) -> Iterator[None]:
    """Leave out the script's hooks on gradients, which get the gradient of the whole batch instead."""
    pass_by_hooks(weights)
    with _is_of_slice.bound(value=True):
        yield


OTHER_THAN_SLICES = "the slices of a call have written different values into a tensor of the model"
_SMALL = 1 << 12
"""Elements up to which a tensor is compared though its version is as before: writes through ``data`` leave it
as it is. A guess."""
_EQUAL = 1e-6
"""Relative difference up to which values are equal: processors may round differently."""


class WrittenTensors:
    """The tensors of a module that a call writes to, such as a buffer, if `plan` is that of such calls.

    Each slice writes what it computes. An equivalence check has found that to be what the whole batch writes,
    but it may have been so by chance::

        self.bias += 0.01 * torch.sign(load.mean() - load)    the slices of many batches have the same signs

    Where ranks have written different values, the call is computed unsplit.
    """

    def __init__(self, module: nn.Module, plan: SplitPlan) -> None:
        places = sorted({*_places(module)} - {*plan.sides}) if plan.rewrites else []
        self._owners = [(module_parts.submodule(module, name), key) for name, key in places]
        self._before = [_state(getattr(owner, key, None)) for owner, key in self._owners]

    def agree(self, split: BatchSplit) -> None:
        """Raise if the ranks have not written the same.

        Raises:
            UsageError: they have written different values.
        """
        if not self._owners:
            return
        written = [self._written(place, split.world.device) for place in range(len(self._owners))]
        sums, sizes = torch.stack(written).unbind(1)
        message = torch.stack([sums, -sums, sizes])
        split.world.all_reduce(message, op="max")
        largest, negative_least, sizes = message.unbind()
        raise_now((largest + negative_least > _EQUAL * sizes).any(), OTHER_THAN_SLICES)

    def _written(self, place: int, device: torch.device) -> Tensor:
        """Return what a tensor is compared by: two zeros if the call has not written to it."""
        owner, key = self._owners[place]
        tensor = getattr(owner, key, None)
        is_same = _state(tensor) == self._before[place]
        if not isinstance(tensor, Tensor) or (is_same and tensor.numel() > _SMALL):
            return torch.zeros(2, dtype=torch.float64, device=device)
        return torch.stack(digest_of(tensor)).to(device)


def _state(tensor: Any) -> tuple[int, int | None] | None:
    """Return what changes with a tensor that a call replaces, or writes to."""
    return (id(tensor), version_of(tensor)) if isinstance(tensor, Tensor) else None


def _places(module: nn.Module) -> Iterator[SideOutput]:
    """Yield the buffers of a module, and the attributes that hold a tensor."""
    for name, part in module_parts.named_modules(module):
        if not isinstance(part, _NormBase):  # whose statistics are those of all slices
            yield from ((name, key) for key, _ in part.named_buffers(recurse=False))
    yield from ((name, key) for name, key, value in own_attributes(module) if isinstance(value, Tensor))
