"""Splits top-level calls of modules with parameters across the ranks."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from samestep.autopilot.equivalence.check import EquivalenceCheck, Verdict
from samestep.autopilot.equivalence.operation_guard import OperationGuard
from samestep.autopilot.equivalence.sample_check import CheckSchedule, SampleCheck
from samestep.autopilot.equivalence.weight_access import calling, reading
from samestep.autopilot.loading.loader_split import Slicing
from samestep.autopilot.script.call_account import FEWER, KEEP_UNSPLIT, LONGER_SPLIT, Account, calling_site
from samestep.autopilot.script.failed_calls import out_of_memory_is_final
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.split import bypassed_modules, module_outputs
from samestep.autopilot.split.batch_norms import uses_batch_norm
from samestep.autopilot.split.call_plans import CallArguments, SplitPlan, batch_split
from samestep.autopilot.split.call_signatures import CallSignatures, CheckedSizes, Signature
from samestep.autopilot.split.created_tensors import CreatedTensors
from samestep.autopilot.split.cuda_graphs import graph_obstacle
from samestep.autopilot.split.forward_reductions import watching_reductions
from samestep.autopilot.split.gradients import Gradients
from samestep.autopilot.split.guards import observer, plain_attributes
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit, CallGraph, call_graph
from samestep.autopilot.split.short_calls import CallKind, ShortCalls
from samestep.autopilot.split.slice_call import Forward, call_slice, check_draws
from samestep.autopilot.split.slice_context import current_slice
from samestep.autopilot.state.sample_reads import GuardedReads
from samestep.base.context_values import bound
from samestep.base.errors import UsageError
from samestep.hooks import declarations, module_parts
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached_all, wrapping
from samestep.parallel.gradients.sparse_gradients import sparse_weights
from samestep.parallel.sharding.share import share
from samestep.ranks.collectives.direct_world import separates_gradients
from samestep.ranks.world.protocol import World

_calls: ContextVar["SplitsCalls | None"] = ContextVar("samestep_calls", default=None)
_of_all_threads: list["SplitsCalls"] = []
"""The receivers of the calls of all threads of this process."""
_is_inside: ContextVar[bool] = ContextVar("samestep_is_inside", default=False)
"""Whether a module call is running here: calls of its submodules are not split themselves."""

_registered = [0]
"""The number of parameters that modules of this process have registered while calls are split."""
_WRAPPERS = frozenset({"_FabricModule"})
"""Names of libraries' modules whose call does more than that of the module inside, which is split instead.

Fabric registers a hook on each output, which needs the gradient of the whole batch.
"""
FAILED = "its first call of this signature raised an error"
"""The reason for a call without a verdict."""
NO_TENSORS = "it is called without dense tensors that have dimensions"
LAZY = "its parameters have no shapes before its first call"
SMALL_SLICE = "batch norm over a slice of one sample"
OTHER_STATE = "it goes on from the state of a batch of another size"


class SplitsCalls(Protocol):
    """A receiver of the calls of modules that no other module calls."""

    @property
    def gradients(self) -> Any:
        """The averages of gradients that a forward computes itself."""

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module."""

    def own(self, total: int) -> int:
        """Return this rank's number of samples in a call of `total` samples."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a module."""

    forward: Forward
    module: nn.Module
    given: CallArguments

    def unsplit(self) -> Any:
        """Return the outputs, computed for the whole batch on this rank."""
        return self.forward(self.module, *self.given.args, **self.given.kwargs)

    @property
    def name(self) -> str:
        """The class of the module."""
        return type(self.module).__name__


@dataclass(eq=False, slots=True)
class _ModuleCalls:
    """The calls of one module so far, by their signature."""

    plans: dict[Signature, SplitPlan | None] = field(default_factory=dict)
    reasons: dict[Signature, str] = field(default_factory=dict)
    sizes: defaultdict[Signature, CheckedSizes] = field(default_factory=lambda: defaultdict(CheckedSizes))
    operations: OperationGuard = field(default_factory=OperationGuard)
    leaves_vary: dict[SplitPlan, bool] = field(default_factory=dict)
    """Whether the ranks' calls have used different leaves, by plan."""
    followed_at: int = -1
    """The number of registered parameters when the module's parameters were followed."""


class CallSplitter:
    """Splits the model calls of one rank's script; `before` are called before each top-level call."""

    def __init__(
        self,
        world: World,
        gradients: Gradients,
        account: Account,
        options: Options = DEFAULTS,
        slicing: Slicing | None = None,
        before: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._slicing, self._before = slicing, before
        self._world, self.gradients, self._account, self._options = world, gradients, account, options
        self._is_calling, self._number = False, 0
        self._modules: WeakKeyDictionary[nn.Module, _ModuleCalls] = WeakKeyDictionary()
        self._signatures = CallSignatures(world.device)
        self._schedule = CheckSchedule(world.place.size, options.check_every)
        may_be_unsplit = options.short_calls == "auto" and options.are_serial
        self._short_calls = ShortCalls(world, account, enabled=may_be_unsplit)

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that no other module calls, split if this is possible."""
        if type(module).__name__ in _WRAPPERS or _is_recomputed():
            return forward(module, *args, **kwargs)
        if module not in self._modules and next(module_parts.parameters(module), None) is None:
            return forward(module, *args, **kwargs)
        self._account.failed.check(self._world.place.size)
        self.gradients.deferred.poll()
        call = _Call(forward, module, CallArguments(args, kwargs))
        if self._is_calling:
            raise UsageError(
                f"two threads call models at the same time ({call.name} at {calling_site()}), so the workers "
                "would call them in different orders. Call them in one thread, or run with -n 1."
            )
        inside, self._is_calling = _is_inside.set(True), True
        try:
            if (why := bypassed_modules.obstacle() or graph_obstacle(module)) is not None:
                return self._unsplit(call, why)
            for call_before in self._before:
                call_before()
            with out_of_memory_is_final(f"a call of {call.name}"):
                if self._slicing is not None and self._slicing.split is not None:
                    self._follow(module, call.given)
                    return self._slicing.call(forward, module, args, kwargs)
                return self._checked_call(call)
        finally:
            self._is_calling = False
            _is_inside.reset(inside)

    def _unsplit(self, call: _Call, why: str) -> Any:
        """Compute a call on all ranks in full, and record why."""
        self._account.note_unsplit(self._account.place_of(call.module), why)
        return call.unsplit()

    def _checked_call(self, call: _Call) -> Any:
        """Execute a call by the plan of its signature; check a new signature or size before."""
        module, given = call.module, call.given
        kind = self._short_calls.begin(module, given)
        if kind.is_unsplit:
            self._follow(module, given)
            outputs = self._unsplit(call, LONGER_SPLIT)
            self._short_calls.end(kind, module)
            return outputs
        plain = plain_attributes(module)
        known = self._modules.setdefault(module, _ModuleCalls())
        signature = self._signatures.signature(module, given, plain, known.plans)
        if (why := self._obstacle(module, given)) is not None:
            return self._unsplit(call, why)
        self._follow(module, given)
        plan = known.plans.get(signature)
        total = None if plan is None else given.total(plan.dims) or 0
        sizes = known.sizes[signature]
        if sizes.are_checked(given, total, self._world.place.size, {} if plan is None else plan.dims):
            bypassed_modules.note_direct_forward(self._account, module)
            what, main = self._account.place_of(module), self._world.place.is_main
            expect = partial(self._account.note_check, what, main=main)
            check = EquivalenceCheck(call.forward, module, given, self._world, expect=expect)
            verdict = check.run()
            signature = self._signatures.without_own_changes(module, plain, signature)
            if verdict.plan is not None:
                known.plans[signature] = verdict.plan
                if self._signatures.counts_batches_only(module):
                    known.sizes[signature] = sizes
                return self._outputs(call, check, verdict)
            sizes.fail(given, verdict.why)
            known.sizes[signature].fail(given, verdict.why)
            known.reasons[signature] = verdict.why
            known.plans.setdefault(signature, None)
        plan = known.plans.get(signature)
        if plan is None or not known.sizes[signature].may_be_split(given):
            of_signature = known.reasons.get(signature, FAILED)
            return self._unsplit(call, known.sizes[signature].why(given, of_signature))
        is_new = self._options.check_every != 0 and self._signatures.counts_to_new_interval(module, plain)
        return self._by_plan(call, plan, kind, is_new=is_new)

    def _outputs(self, call: _Call, check: EquivalenceCheck, verdict: Verdict) -> Any:
        """Return the outputs of a call that has passed its check."""
        what = self._account.place_of(call.module)
        assert verdict.plan is not None
        if verdict.printed:
            self._account.note_prints(what, main=self._world.place.is_main)
        if self._options.are_serial:
            graph, known = call_graph(verdict.outputs), self._modules[call.module]
            known.operations.add(verdict.plan, graph)
            if verdict.plan.sides:
                graph = call_graph(module_outputs.outcome(call.module, verdict.outputs, verdict.plan.sides))
            self._follow_leaves(call.module, verdict.plan, graph)
            self._account.split[what] += 1
            return verdict.outputs
        # The check used one worker's batch norm and draws; compute again with the user's options.
        check.restore()
        return self._by_plan(call, verdict.plan)

    def _obstacle(self, module: nn.Module, given: CallArguments) -> str | None:
        """Return the reason why this call stays unsplit without a check; None if a check decides."""
        if not given.may_have_samples(self._world.place.size):
            return FEWER if given.tensors() else NO_TENSORS
        if any(is_lazy(parameter) for parameter in module_parts.parameters(module)):
            return LAZY
        return observer(module)

    def _by_plan(
        self, call: _Call, plan: SplitPlan, kind: CallKind | None = None, *, is_new: bool = False
    ) -> Any:
        """Execute a call by its plan, if there are enough samples; compare it if its counters are new."""
        total, size = call.given.total(plan.dims), self._world.place.size
        is_local = self._options.batch_norm == "local" and uses_batch_norm(call.module)
        if total is None or total < size:
            return self._unsplit(call, FEWER)
        if is_local and total < 2 * size:
            return self._unsplit(call, SMALL_SLICE)
        if not module_outputs.can_continue(call.module, plan.gatherings, plan.sides, total):
            return self._unsplit(call, OTHER_STATE)
        self._account.split[self._account.place_of(call.module)] += 1
        self._number += 1
        if is_local:
            self._account.note_exception("batch norm: over each worker's slice (--batch-norm local)")
        if plan.draws and self._options.random == "per-worker":
            self._account.note_exception("random numbers: each worker's own (--random per-worker)")
        try:
            outputs = self._split(call, plan, batch_split(self._world, plan.dims, total), is_new=is_new)
        except Exception as error:
            self._account.failed.record(call.name, self._number, error)
            raise
        if kind is not None:
            self._short_calls.end(kind, call.module)
        return outputs

    def _split(self, call: _Call, plan: SplitPlan, split: BatchSplit, *, is_new: bool) -> Any:
        """Return the outputs of a split call; raise `OutOfStep` if it differs from its equivalence check."""
        forward, module, given = call.forward, call.module, call.given
        before = None if plan.draws is not None else RngState.now(self._world.device)
        check, operations = None, self._modules[module].operations
        is_due = self._schedule.is_due(module, grad=torch.is_grad_enabled())
        on_all = self._options.are_serial and (is_due or is_new)
        if on_all or operations.is_due(plan):
            check = SampleCheck(forward, module, given, self._world.device, draws=plan.draws is not None)
        if plan.sides:
            module_outputs.slice_side_outputs(module, plan.gatherings, plan.sides, split)
        draws = None if plan.draws is None else GlobalDraws(split, plan.draws)
        own = given.sliced(split, plan.dims)
        reads = GuardedReads(plan.reads, call.name) if plan.reads else None
        created = CreatedTensors() if self._modules[module].leaves_vary.get(plan) else None
        deferring = self.gradients.deferred.deferring()
        with deferring, watching_reductions(when=plan.watches_reductions) as watching:
            with watching or nullcontext(), created or nullcontext():
                outputs = call_slice(
                    forward, module, own, split, draws=draws, options=self._options, reads=reads
                )
            check_draws(call.name, draws, before, self._world.device)
            value = module_outputs.outcome(module, outputs, plan.sides)
            result, left = module_outputs.gather_outcome(value, plan.gatherings, split, what=call.name)
        module_outputs.assign_side_outputs(module, left)
        graph = call_graph(outputs)
        self._follow_leaves(module, plan, call_graph(value) if plan.sides else graph, created or ())
        if check is not None:
            check.compare(result, plan, split, on_all=on_all)
            operations.add(plan, graph)
        elif self._options.are_serial:
            operations.inspect(plan, graph)
        return result

    def _follow(self, module: nn.Module, given: CallArguments) -> None:
        """Follow the parameters of a module; repeat this once any module has registered new ones."""
        known = self._modules.setdefault(module, _ModuleCalls())
        if known.followed_at == _registered[0]:
            return
        known.followed_at = _registered[0]
        # Global batch norm, and slices of tensors with gradients, communicate within backward.
        communicates = (
            self._options.batch_norm == "global"
            and not separates_gradients(self._world)
            and any(isinstance(one, BatchNorm) for one in module_parts.modules(module))
        )
        communicates = communicates or any(tensor.requires_grad for _, tensor in given.tensors())
        named = dict(module_parts.named_parameters(module, prefix=type(module).__name__))
        sparse = sparse_weights(module).values()
        with torch.inference_mode(mode=False):  # gradient buffers are also used outside of it
            self.gradients.follow(
                named.values(), may_overlap=not communicates, names=list(named), sparse=sparse
            )

    def _follow_leaves(
        self, module: nn.Module, plan: SplitPlan, graph: CallGraph, created: Container[Tensor] = ()
    ) -> None:
        """Follow weights of the script that a call has used, such as one that a global names."""
        vary = self._modules[module].leaves_vary
        vary[plan] = self.gradients.follow_leaves(graph.leaves, vary=vary.get(plan), created=created)

    def own(self, total: int) -> int:
        """Return this rank's number of samples in a model call of `total` samples."""
        place = self._world.place
        if self._slicing is not None and self._slicing.split is not None:
            return total  # the script has only its slice
        return len(share(total, place.rank, place.size))


def splitting_calls(calls: SplitsCalls) -> AbstractContextManager[None]:
    """Let `calls` split the module calls of the calling thread."""
    return bound(_calls, calls)


@contextmanager
def splitting_calls_of_all_threads(calls: SplitsCalls) -> Iterator[None]:
    """Let `calls` split the module calls of every thread."""
    _of_all_threads.append(calls)
    try:
        yield
    finally:
        _of_all_threads.remove(calls)


def _current() -> SplitsCalls | None:
    """Return what splits the calls of the calling thread."""
    return _calls.get() or next(iter(_of_all_threads), None)


@contextmanager
def intercepted_calls() -> Iterator[None]:
    """Replace `nn.Module.__call__` and tensor hooks, so that `splitting_calls` can split calls."""

    def count(*_: Any) -> None:
        _registered[0] += 1

    counting = register_module_parameter_registration_hook(count)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # it traces a compiled module
                return original(module, *args, **kwargs)
            calls = _current()
            if calls is None:  # another thread of the script, or a process that it has forked
                with calling(module):
                    return original(module, *args, **kwargs)
            if _is_inside.get():
                return original(module, *args, **kwargs)
            return calls(original, module, args, kwargs)

        return call

    def read_state(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _poll_deferred()  # before a file gets these weights
        with reading(module):
            return original(module, *args, **kwargs)

    def refused(what: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if current_slice.get() is not None:
            raise UsageError(f"{what} within a split call of a model gets a slice. {KEEP_UNSPLIT}")
        return original(*args, **kwargs)

    hooks = {
        declarations.SPLIT_CALL: make,
        declarations.STATE_READ: wrapping(read_state),
        declarations.TENSOR_HOOK: wrapping(partial(refused, "a hook on a tensor")),
        declarations.RETAINED_GRAD: wrapping(partial(refused, "retain_grad")),
    }
    with ExitStack() as stack:
        stack.callback(counting.remove)
        stack.enter_context(attached_all(hooks))
        stack.enter_context(bypassed_modules.functional_calls())
        yield


def compute_alone() -> None:
    """Split no call of this thread any more, as in a process that the script has forked."""
    _calls.set(None)


def current_gradients() -> Any:
    """Return the gradient synchronizer of the calling thread's script; None if no calls are split."""
    calls = _current()
    return None if calls is None else calls.gradients


def _poll_deferred() -> None:
    """Raise the error of a split call, if the device has found one by now."""
    gradients = current_gradients()
    if gradients is not None:
        gradients.deferred.poll()


def own_samples(total: int) -> int:
    """Return this rank's number of samples in a model call of `total` samples by the calling thread."""
    calls = _current()
    return total if calls is None else calls.own(total)


def _is_recomputed() -> bool:
    """Return whether a backward or a slice makes this call, as an activation checkpoint does."""
    is_in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public spelling
    return is_in_backward or current_slice.get() is not None
