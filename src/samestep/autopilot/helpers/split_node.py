"""Puts a split call into the script's autograd graph, as one node or several.

Its backward gets the gradients of the whole outputs, and lets all ranks compute those of their slices. Each
rank keeps the graph of its slice until backwards without ``retain_graph`` have released a part of that of
each output. The call is computed again if that fails.

Outputs that have nothing in common are results of several nodes if some are computed from inputs with a
graph: a backward comes to that graph only if it would on one worker.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle

from samestep.autopilot.helpers.call_states import NumberedPlan, SignatureCalls
from samestep.autopilot.helpers.mirrors import Kind, MirroredModule, is_weight
from samestep.autopilot.helpers.shared_storage import memory_of
from samestep.autopilot.helpers.slices import CallResult, pass_by_hooks, without_hooks
from samestep.autopilot.helpers.surroundings import Surroundings
from samestep.autopilot.split.call_plans import assign_side_outputs, outcome
from samestep.autopilot.split.gradients import gradients_of, leaves_of
from samestep.autopilot.split.guards import Attributes, Reach, changed, read_in_backward, restore_settings
from samestep.autopilot.split.sharded_autograd import is_operand, leaves_in_order, saving_nodes
from samestep.autopilot.split_calls import ModuleCall, is_inside, may_call_parts
from samestep.autopilot.state.saved_state import HeldTensors, SavedState, SideOutput, version_of
from samestep.hooks import module_parts
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import Path, leaves, mapped
from samestep.parallel.gradients.batch_norm import uses_batch_statistics

if TYPE_CHECKING:
    from samestep.autopilot.helpers.main_calls import MainCalls

GradientHook: TypeAlias = Callable[[Tensor], Tensor | None]
"""Gets the gradient of a tensor, and returns what takes the place of it, if anything does."""


class _Life:
    """A value that the nodes of a call hold; it ends with them."""


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: "NodeCall", places: Sequence[int], life: _Life, token: Tensor, *_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.places, ctx.life = call, places, life
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(token)
        return tuple(call.outputs[place].data for place in places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # Of the engine itself: the script may have imported its functions before they could be replaced.
        call, retain = ctx.call, torch._C._autograd._get_current_graph_task_keep_graph()  # noqa: SLF001
        pairs = zip(ctx.places, gradients, strict=True)
        of_outputs = {place: gradient for place, gradient in pairs if gradient is not None}
        if not of_outputs:
            return (None,) * len(ctx.needs_input_grad)
        if not call.left.issuperset(of_outputs):
            _ = ctx.saved_tensors  # raises, as torch has released them
        of_sources = call.backward([*map(of_outputs.get, range(len(call.outputs)))], retain=retain)
        if not retain:
            call.free(of_outputs)
        return None, None, None, None, None, *of_sources


@cache
def _node_named(name: str) -> Any:
    """Return a node of a split call with the name of an operation, which a printed tensor has in it."""
    named: Any = type("_Node", (_Node,), {})
    named._backward_cls.__name__ = name  # noqa: SLF001 - the type of its nodes
    return named


def _name_of(outputs: Sequence[Tensor]) -> str:
    """Return the name of the operation that has computed the outputs, or the loss if there is one."""
    node: Any = min(outputs, key=lambda output: output.dim() > 0).grad_fn
    while getattr(getattr(node, "_forward_cls", None), "__module__", "").startswith("samestep."):
        node = node.next_functions[0][0]  # it gathers
    return type(node).__name__


def as_node(call: "NodeCall", sources: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of a call as results of nodes, whose operands are an anchor and the sources."""
    life, token = _Life(), torch.empty(0, device="cpu")
    call.end = finalize(life, call.release)
    operands = _in_order(call, sources) if sum(map(_has_hooks, sources)) > 1 else sources
    outputs: dict[int, Tensor] = {}
    for places in _groups(call):
        of_group = [call.outputs[place] for place in places]
        node, used = _node_named(_name_of(of_group)), _used(call, of_group, operands)
        results = node.apply(call, places, life, token, call.anchor, *used)
        outputs.update(zip(places, results, strict=True))
    return tuple(outputs[place] for place in range(len(outputs)))


def _groups(call: "NodeCall") -> list[list[int]]:
    """Return the places of the outputs of each node."""
    together = [*range(len(call.outputs))]
    of_inputs = call.sources[call.num_weights :]
    if len(together) == 1 or not any(source.requires_grad for source in of_inputs):
        return [together]  # one exchange for a backward of all
    groups: list[tuple[set[Any], list[int]]] = []
    for place in together:
        nodes = saving_nodes([call.outputs[place]])
        joined = [group for group in groups if not nodes.isdisjoint(group[0])]
        groups = [group for group in groups if group not in joined]
        groups.append((nodes.union(*(nodes for nodes, _ in joined)), [place]))
        groups[-1][1].extend(at for _, places in joined for at in places)
    return [sorted(places) for _, places in groups]


def _used(call: "NodeCall", outputs: Sequence[Tensor], operands: Sequence[Tensor]) -> list[Tensor]:
    """Return the operands of a node of some outputs, without the graph of inputs that these do not use."""
    if len(outputs) == len(call.outputs):
        return [*operands]
    here = set(map(id, leaves_of(*outputs)))
    return [
        operand if place < call.num_weights or id(leaf) in here else operand.detach()
        for place, (operand, leaf) in enumerate(zip(operands, call.leaves[: len(operands)], strict=True))
    ]


def _has_hooks(source: Tensor) -> bool:
    return bool(source._backward_hooks or getattr(source, "_post_accumulate_grad_hooks", None))  # noqa: SLF001


class _Operand(torch.autograd.Function):
    """A tensor itself; autograd runs the later of two such nodes first, and the hooks on its tensor."""

    @staticmethod
    def forward(ctx: Any, source: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)  # a weight that the loss does not use has no gradient
        return source.view_as(source)

    @staticmethod
    def backward(_: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient


def _in_order(call: "NodeCall", sources: Sequence[Tensor]) -> list[Tensor]:
    """Return the sources, each by a node, so that hooks on them run in the order of an unsplit backward.

    Hooks may draw random numbers.
    """
    places = {id(leaf): place for place, leaf in enumerate(leaves_in_order(call.outputs))}
    numbered = zip(range(len(sources)), call.leaves, strict=True)
    order = sorted(numbered, key=lambda pair: places.get(id(pair[1]), len(places)), reverse=True)
    operands = [*sources]
    for at, _ in order:
        if sources[at].requires_grad:
            operands[at] = _Operand.apply(sources[at])  # type: ignore[no-untyped-call]
    return operands


def call_of_operand(operand: Tensor | GradientEdge) -> "tuple[NodeCall, int] | None":
    """Return the split call of which a tensor is an output from which others are computed, and its place."""
    node: Any = operand.grad_fn if isinstance(operand, Tensor) else operand.node
    if not issubclass(getattr(type(node), "_forward_cls", object), _Node):
        return None
    call, place = node.call, node.places[operand.output_nr]
    return (call, place) if call.has_operand(place) else None


CREATES_GRAPH = "its gradients are differentiated again (create_graph=True)"
BATCHED = "several gradients are computed for it at once (is_grads_batched=True)"
OF_OPERANDS = "the script uses the gradient of an output from which other outputs are computed"
OTHER_IN_BACKWARD = "its backward may read what the script has changed since the call"
REPLACED = "its weights or statistics get other values before its backward, which helpers do not see"
MODIFIED = "its weights are modified before its backward, so it could not be computed again"


def _is_batched(gradient: Tensor | None) -> bool:
    """Return whether a tensor stands for several ones, which no message can carry."""
    functions = torch._C._functorch  # noqa: SLF001 - no public spelling
    return gradient is not None and (
        functions.is_batchedtensor(gradient) or functions.is_legacy_batchedtensor(gradient)
    )


@dataclass(slots=True)
class Attempt:
    """A call that is about to be split."""

    call: ModuleCall
    carried: tuple[SideOutput, ...]
    """The attributes of the module that hold tensors with a graph."""
    state: Mapping[SideOutput, Any]
    """These, and the other attributes that the call assigns, before the call."""
    surroundings: Surroundings
    streams: RngState
    """The state of the random generators before the call."""
    reach: Reach
    """The objects that the module reaches before the call."""
    saved: SavedState | None
    """The module before the call; None if calls change no more than batch norm does."""
    held: HeldTensors
    """The attributes, containers and objects of the module before the call, without values of tensors."""
    plan: NumberedPlan
    number: int = 0
    """The number under which all ranks keep the graph of the call."""
    mirror: MirroredModule | None = None
    """The mirrors of the module when the call was sent; a loss of helpers forgets all mirrors."""
    buffers: Mapping[Kind, Tensor] = field(default_factory=dict)
    """The bytes of the tensors of the mirror that are no weights, and not shared, before the call."""

    def note_mirror(self, mirror: MirroredModule) -> None:
        """Note the mirror to which the call was sent, before the call changes it."""
        self.mirror = mirror
        mirror.begin_call()
        # A saved state has them, and a call without a graph is not computed again.
        if self.saved is None and self.surroundings.grad:
            self.buffers = mirror.values_of_buffers()

    def restore(self) -> None:
        """Make the module as it was before the call, except its weights."""
        if self.saved is not None:
            self.saved.restore()
            return
        self.held.restore()
        restore_settings(self.call.module, self.reach)
        if self.mirror is not None:
            self.mirror.buffers.set(self.buffers)


@contextmanager
def _hooks_removed(sources: Sequence[Tensor]) -> Iterator[None]:
    """Call no hooks on tensors in the block, nor keep gradients of them: the backward around it does."""
    kept = [(hooks, dict(hooks)) for source in sources if (hooks := source._backward_hooks)]  # noqa: SLF001
    retained = [(source, source.grad) for source in sources if source.retains_grad]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)
        for source, gradient in retained:
            source.grad = gradient


@contextmanager
def _with_flags(flags: Sequence[tuple[Tensor, bool]]) -> Iterator[None]:
    """Let tensors require gradients in the block as at a call: the script may freeze some after it."""
    changed = [(tensor, flag) for tensor, flag in flags if tensor.requires_grad != flag]
    try:
        for tensor, flag in changed:
            tensor.requires_grad_(flag)
        yield
    finally:
        for tensor, flag in changed:
            tensor.requires_grad_(not flag)


def _replaced(tensors: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors to whose ``data`` the script has assigned since a call, with that of the call."""
    return [(tensor, data) for tensor, data in tensors if memory_of(tensor) != memory_of(data)]


@contextmanager
def _with_data(replaced: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let tensors have the ``data`` of a call in the block, not what was assigned after it."""
    now = [(tensor, tensor.data) for tensor, _ in replaced]
    try:
        for tensor, data in replaced:
            tensor.data = data
        yield
    finally:
        for tensor, data in now:
            tensor.data = data


def _read_statistics(module: nn.Module) -> Iterator[Tensor]:
    """Yield the statistics by which batch norm normalizes in evaluation; its backward reads them again.

    Calls in training write to them, also those of another module that has the layer.
    """
    for part in module_parts.modules(module):
        if isinstance(part, _NormBase) and not uses_batch_statistics(part):
            yield from (buffer for buffer in (part.running_mean, part.running_var) if buffer is not None)


def _rewritten(values: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return the weights and statistics that have other values than at a call, with those of the call."""
    return [(weight, value) for weight, value in values if not torch.equal(weight, value)]


@contextmanager
def _with_values(rewritten: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let weights and statistics have the values of a call in the block, in the same memory."""
    now = [(weight, weight.detach().clone()) for weight, _ in rewritten]
    try:
        for weight, value in rewritten:
            weight.data.copy_(value)
        yield
    finally:
        for weight, value in now:
            weight.data.copy_(value)


class _Cut(torch.autograd.Function):
    """The identity, whose backward goes no further while the gradients of a node are computed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, is_cut: list[bool]) -> Tensor:
        """Return the tensor."""
        ctx.is_cut = is_cut
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient, or none."""
        return None if ctx.is_cut[0] else gradient, None


class NodeCall:
    """A split call in the script's graph."""

    def __init__(
        self, calls: "MainCalls", attempt: Attempt, signature: SignatureCalls, result: CallResult
    ) -> None:
        assert result.graph is not None
        self._calls, self._signature, (_, self._plan) = calls, signature, attempt.plan
        self._attempt: Attempt | None = attempt
        self._number = attempt.number
        self.sources: Sequence[Tensor] = result.sources
        self.num_weights = result.graph.num_weights
        assert attempt.mirror is not None
        of_module = attempt.mirror.tensors
        operands = [*of_module, *(tensor for _, tensor in leaves(attempt.call.arguments.both))]
        self._flags = [(tensor, tensor.requires_grad) for tensor in operands if tensor.is_leaf]
        self._data = [(tensor, tensor.data) for tensor in of_module if tensor.is_leaf]
        shared = {id(tensor) for tensor in attempt.mirror.shared}
        self._values = [
            (tensor, tensor.detach().clone())
            for tensor in (*filter(is_weight, of_module), *_read_statistics(attempt.call.module))
            if id(tensor) not in shared and tensor.device.type == "cpu"
        ]
        """Of tensors in memory that helpers do not see; a comparison on a device would wait for it."""
        self._versions = [version_of(source) for source in result.sources]
        self._versions_of_inputs = self._versions_now()
        self.outputs: Sequence[Tensor] = result.graph.outputs
        self.leaves: Sequence[Tensor] = result.graph.sources
        self.left = set(range(len(self.outputs)))
        """The places of the outputs of whose graph no backward has released a part."""
        self.anchor = torch.empty(0, device="cpu", requires_grad=True)
        """An operand of the node without a gradient, for a backward that must come to the node."""
        self._constants = result.constants
        self._state: Attributes | None = None
        """The state of the module after the call, which the backward may read; None if it reads none."""
        self._hooks: dict[int, tuple[int, GradientHook]] = OrderedDict()
        """Hooks on gradients of outputs from which others are computed, and the places of these outputs."""
        self.end: Callable[[], Any] = self.release
        """Releases the graph, once."""

    def note_state(self) -> None:
        """Note the state after the call, which the backward may read: helpers do not see it change."""
        assert self._attempt is not None
        self._state = read_in_backward(self._attempt.call.module)

    def _has_other_state(self) -> bool:
        attempt = self._attempt
        return (
            self._state is not None
            and attempt is not None
            and changed(self._state, read_in_backward(attempt.call.module)) != {}
        )

    def has_operand(self, place: int) -> bool:
        """Return whether other outputs are computed from the one at a place."""
        rest = [output for number, output in enumerate(self.outputs) if number != place]
        return bool(rest) and is_operand(self.outputs[place], rest)

    def hook(self, place: int, hook: "GradientHook") -> RemovableHandle:
        """Call a hook with the gradient of an output, that by the outputs computed from it included."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = place, hook
        return handle

    def backward(self, gradients: Sequence[Tensor | None], *, retain: bool) -> Sequence[Tensor | None]:
        """Return the gradients of the sources, given those of the outputs; another backward may follow.

        With gradients enabled it computes them by operations that can be differentiated again.
        """
        creates_graph, sources = torch.is_grad_enabled(), self.sources
        if creates_graph and all(gradient is None for gradient in gradients):  # of a node behind a `_Cut`
            return [None] * len(sources)
        pass_by_hooks(sources)
        is_modified = [version_of(source) for source in sources] != self._versions
        replaced = _replaced(self._data)
        rewritten = [] if is_modified or replaced else _rewritten(self._values)
        if creates_graph or any(map(_is_batched, gradients)):
            self._signature.stay_unsplit(CREATES_GRAPH if creates_graph else BATCHED)
        elif self._hooks:
            assert self._attempt is not None
            in_parts = may_call_parts(self._attempt.call.module)
            self._signature.stay_unsplit(OF_OPERANDS, in_parts=in_parts)
        elif replaced or rewritten:
            # The graph of a whole call has the new values where torch reads them again.
            self._signature.stay_unsplit(REPLACED)
        elif self._has_other_state():
            self._signature.stay_unsplit(OTHER_IN_BACKWARD)
        else:
            computed = self._calls.backward(self._number, gradients, self._signature, retain=retain)
            if computed is not None:
                if is_modified:
                    self._signature.stay_unsplit(MODIFIED)
                return computed
        if is_modified or self._versions_now() != self._versions_of_inputs:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation after the call of the model, which has to be computed again here"
            )
        return self._backward_here(gradients, replaced, rewritten)

    def _backward_here(
        self,
        gradients: Sequence[Tensor | None],
        replaced: Sequence[tuple[Tensor, Tensor]],
        rewritten: Sequence[tuple[Tensor, Tensor]],
    ) -> Sequence[Tensor | None]:
        """Return the gradients of the sources by a call that is computed again, on this rank only."""
        creates_graph, sources = torch.is_grad_enabled(), self.sources
        is_cut: list[bool] = [True]
        with torch.enable_grad(), _with_flags(self._flags), _with_data(replaced), _with_values(rewritten):
            outputs, stand_ins = self._computed_again(is_cut if creates_graph else None)
        places = [place for place in range(len(gradients)) if place not in self._constants]
        for place, hook in self._hooks.values():
            outputs[places.index(place)].register_hook(hook)  # type: ignore[no-untyped-call]
        needed = [gradients[place] for place in places]
        pairs = [(out, grad) for out, grad in zip(outputs, needed, strict=True) if grad is not None]
        wanted = [stand_ins.get(id(source), source) for source in sources if source.requires_grad]
        if not wanted:
            return [None] * len(sources)
        with_gradients, of_outputs = [out for out, _ in pairs], [grad for _, grad in pairs]
        with _hooks_removed(wanted), without_hooks(sources):
            gradients_of_wanted = (
                torch.autograd.grad(
                    *(with_gradients, wanted, of_outputs), create_graph=True, allow_unused=True
                )
                if creates_graph
                else gradients_of(with_gradients, wanted, of_outputs, retain=False)
            )
        is_cut[0], of_wanted = False, iter(gradients_of_wanted)
        return [next(of_wanted) if source.requires_grad else None for source in sources]

    def _versions_now(self) -> list[int | None]:
        """Return how often each tensor that the call was given, or cannot restore, was written to."""
        attempt = self._attempt
        assert attempt is not None
        assert attempt.mirror is not None
        operands = attempt.call.arguments.both, attempt.state
        weights = set(map(id, self.sources))
        shared = [tensor for tensor in attempt.mirror.shared if id(tensor) not in weights]
        return [version_of(tensor) for tensor in [*(tensor for _, tensor in leaves(operands)), *shared]]

    def _computed_again(self, is_cut: list[bool] | None) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Return the outputs of the node, each once, with a graph of the whole call on this rank.

        The call gets stand-ins, also returned, for tensors that are computed: they may be computed from the
        weights, or from other arguments, as in a recurrent model, and that part is not of this node.

        Args:
            is_cut: see `_Cut`; None if no graph of the gradients is wanted.
        """
        attempt, device = self._attempt, self._calls.device
        assert attempt is not None
        stand_ins: dict[int, Tensor] = {}

        def stand_in(_: Path, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad or tensor.is_leaf:
                return tensor
            if id(tensor) not in stand_ins:
                cut: Any = partial(_Cut.apply, tensor, is_cut)
                stand_ins[id(tensor)] = tensor.detach().requires_grad_() if is_cut is None else cut()
            return stand_ins[id(tensor)]

        call, module = attempt.call, attempt.call.module
        call = replace(call, arguments=call.arguments.changed(stand_in))
        saved, now, modes = SavedState(module), RngState.now(device), Surroundings.now(module, device)
        inside = is_inside.set(True)
        try:
            attempt.streams.restore()
            attempt.restore()
            assign_side_outputs(module, mapped(attempt.state, stand_in))
            with attempt.surroundings.entered(module):
                value = outcome(module, call.unsplit(), self._plan.sides)
            of_call = {id(argument) for _, argument in leaves(call.arguments.both)}
            outputs = {id(output): output for _, output in leaves(value) if output.requires_grad}
            return [output for number, output in outputs.items() if number not in of_call], stand_ins
        finally:
            is_inside.reset(inside)
            saved.restore()
            now.restore()
            modes.set(module)

    def free(self, places: Collection[int]) -> None:
        """Note that a backward has released what the graphs of some outputs save."""
        rest = self.left.difference(places)
        if rest:
            freed = saving_nodes([self.outputs[place] for place in places])
            rest = {place for place in rest if freed.isdisjoint(saving_nodes([self.outputs[place]]))}
        self.left = rest
        if not rest:
            self.end()

    def release(self) -> None:
        """Release the graph on all ranks."""
        self._attempt, self.outputs, self.leaves, self.sources = None, [], [], []
        self._flags, self._data, self._values = [], [], []
        self._calls.exchange.release(self._number)
