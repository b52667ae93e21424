"""Splits top-level calls of modules with parameters across the ranks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from samestep.autopilot.equivalence.check import FEWER, EquivalenceCheck
from samestep.autopilot.equivalence.sample_check import CheckSchedule, SampleCheck
from samestep.autopilot.loading.loader_split import Slicing
from samestep.autopilot.script.call_account import Account, calling_site
from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.autopilot.script.out_of_memory import out_of_memory_is_final
from samestep.autopilot.split import bypassed_modules, module_outputs
from samestep.autopilot.split.activation_checkpoints import is_within_slice
from samestep.autopilot.split.batch_norms import uses_batch_norm
from samestep.autopilot.split.call_plans import CallArguments, SplitPlan
from samestep.autopilot.split.call_signatures import CallSignatures, CheckedSizes, Signature
from samestep.autopilot.split.forward_reductions import watching_reductions
from samestep.autopilot.split.gradients import Gradients, leaves_of
from samestep.autopilot.split.guards import observer, plain_attributes
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.split.slice_call import Forward, call_slice
from samestep.autopilot.state.sample_reads import GuardedReads
from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached_all, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.parallel.sharding.share import share
from samestep.ranks.world.protocol import World

_calls: ContextVar["CallSplitter | None"] = ContextVar("samestep_calls", default=None)

FAILED = "its first call of this signature raised an error"
"""The reason for a call without a verdict."""
NO_TENSORS = "it is called without dense tensors that have dimensions"
LAZY = "its parameters have no shapes before its first call"
SMALL_SLICE = "batch norm over a slice of one sample"
OTHER_STATE = "it goes on from the state of a batch of another size"


class CallSplitter:
    """Splits the model calls of one rank's script.

    Args:
        world: the ranks.
        gradients: averages the gradients of the called modules.
        account: records each call.
        options: the options for split calls.
        slicing: the state of ``--split loader``; None without it.
        before: called before each top-level call.
    """

    def __init__(
        self,
        world: World,
        gradients: Gradients,
        account: Account,
        options: Options = DEFAULTS,
        slicing: Slicing | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._slicing, self._before = slicing, before
        self._world, self._gradients, self._account, self._options = world, gradients, account, options
        self._inside, self._number = False, 0
        self._plans: WeakKeyDictionary[nn.Module, dict[Signature, SplitPlan | None]] = WeakKeyDictionary()
        self._reasons: WeakKeyDictionary[nn.Module, dict[Signature, str]] = WeakKeyDictionary()
        self._followed_at: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._sizes: WeakKeyDictionary[nn.Module, dict[Signature, CheckedSizes]] = WeakKeyDictionary()
        self._signatures = CallSignatures(world.device)
        self._schedule = CheckSchedule(world.place.size, options.check_every)

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module, split if this is possible."""
        if self._inside or next(module.parameters(), None) is None or _is_recomputed():
            return forward(module, *args, **kwargs)
        self._account.failed.check(self._world.place.size)
        if bypassed_modules.is_functional() or bypassed_modules.is_transformed():
            return self._unsplit(forward, module, CallArguments(args, kwargs))
        self._before()
        self._inside = True
        try:
            with out_of_memory_is_final(f"a call of {type(module).__name__}"):
                if self._slicing is not None and self._slicing.split is not None:
                    self._follow(module, CallArguments(args, kwargs))
                    return self._slicing.call(forward, module, args, kwargs)
                return self._checked_call(forward, module, CallArguments(args, kwargs))
        finally:
            self._inside = False

    def _unsplit(self, forward: Forward, module: nn.Module, given: CallArguments) -> Any:
        """Call a module in a transform or by `functional_call` on all ranks in full, with its submodules."""
        why = (
            bypassed_modules.FUNCTIONAL if bypassed_modules.is_functional() else bypassed_modules.TRANSFORMED
        )
        self._account.note_unsplit(f"{type(module).__name__} at {calling_site()}", why)
        self._inside = True
        try:
            return forward(module, *given.args, **given.kwargs)
        finally:
            self._inside = False

    def _checked_call(self, forward: Forward, module: nn.Module, given: CallArguments) -> Any:
        plain = plain_attributes(module)
        plans = self._plans.setdefault(module, {})
        signature = self._signatures.signature(module, given, plain, plans)
        what = f"{type(module).__name__} at {calling_site()}"
        obstacle = self._obstacle(module, given)
        if obstacle is not None:
            self._account.note_unsplit(what, obstacle)
            return forward(module, *given.args, **given.kwargs)
        with torch.inference_mode(mode=False):  # gradient buffers are also used outside of it
            self._follow(module, given)
        known = plans.get(signature)
        total = None if known is None else given.total(known.dims) or 0
        sizes = self._sizes.setdefault(module, {}).setdefault(signature, CheckedSizes())
        if sizes.are_checked(given, total, self._world.place.size):
            bypassed_modules.note_direct_forward(self._account, module)
            check = EquivalenceCheck(forward, module, given, self._world)
            verdict = check.run()
            signature = self._signatures.without_own_changes(module, plain, signature)
            if verdict.plan is None:
                sizes.fail(given)
                self._sizes[module].setdefault(signature, CheckedSizes()).fail(given)
                self._reasons.setdefault(module, {})[signature] = verdict.why
                plans.setdefault(signature, None)
            else:
                plans[signature] = verdict.plan
                if verdict.printed:
                    self._account.note_prints(what, main=self._world.place.is_main)
                if self._options.are_serial:
                    self._account.split[what] += 1
                    return self._followed(verdict.outputs, given)
                # The check used one worker's batch norm and draws; compute again with the user's options.
                check.restore()
                return self._followed(self._by_plan(forward, module, given, verdict.plan, what), given)
        plan = plans.get(signature)
        if plan is None or not self._sizes[module][signature].may_be_split(given):
            self._account.note_unsplit(what, self._reasons.get(module, {}).get(signature, FAILED))
            return forward(module, *given.args, **given.kwargs)
        return self._by_plan(forward, module, given, plan, what)

    def _obstacle(self, module: nn.Module, given: CallArguments) -> str | None:
        """Return the reason why this call stays unsplit without a check; None if a check decides."""
        if not any(max(tensor.shape[:2]) >= self._world.place.size for _, tensor in given.tensors()):
            return FEWER if given.tensors() else NO_TENSORS
        if any(is_lazy(parameter) for parameter in module.parameters()):
            return LAZY
        return observer(module)

    def _by_plan(
        self, forward: Forward, module: nn.Module, given: CallArguments, plan: SplitPlan, what: str
    ) -> Any:
        """Execute a call by its plan, if there are enough samples."""
        total, size = given.total(plan.dims), self._world.place.size
        is_local = self._options.batch_norm == "local" and uses_batch_norm(module)
        if total is None or total < size or (is_local and total < 2 * size):
            few = total is None or total < size
            self._account.note_unsplit(what, FEWER if few else SMALL_SLICE)
            return forward(module, *given.args, **given.kwargs)
        if not module_outputs.can_continue(module, plan.joints, plan.sides, total):
            self._account.note_unsplit(what, OTHER_STATE)
            return forward(module, *given.args, **given.kwargs)
        self._account.split[what] += 1
        self._number += 1
        if is_local:
            self._account.note_exception("batch norm: over each worker's slice (--batch-norm local)")
        if plan.draws and self._options.random == "per-worker":
            self._account.note_exception("random numbers: each worker's own (--random per-worker)")
        try:
            return self._split(forward, module, given, plan, BatchSplit(self._world, total))
        except Exception as error:
            self._account.failed.record(type(module).__name__, self._number, error)
            raise

    def _split(
        self, forward: Forward, module: nn.Module, given: CallArguments, plan: SplitPlan, split: BatchSplit
    ) -> Any:
        name = type(module).__name__
        before = None if plan.draws is not None else RngState.now(self._world.device)
        check = None
        if self._options.are_serial and self._schedule.is_due(module, grad=torch.is_grad_enabled()):
            check = SampleCheck(forward, module, given, self._world, draws=plan.draws is not None)
        if plan.sides:
            module_outputs.slice_side_outputs(module, plan.joints, plan.sides, split)
        draws = None if plan.draws is None else GlobalDraws(split, plan.draws)
        own, reads = given.sliced(split, plan.dims), GuardedReads(plan.reads, name) if plan.reads else None
        with watching_reductions(when=plan.watches_reductions) as watching:
            with watching or nullcontext():
                outputs = call_slice(
                    forward, module, own, split, draws=draws, options=self._options, reads=reads
                )
            if before is not None and not before.same(RngState.now(self._world.device)):
                raise OutOfStep(
                    f"{name} drew random numbers, and drew none in its equivalence check: the workers' "
                    "random streams now differ. Keep its calls unsplit: samestep.batch_dim(model, dim=None)."
                )
            if draws is not None and draws.unknown:
                raise OutOfStep(
                    f"{name} drew random numbers in another way than in its equivalence check "
                    f"({'; '.join(sorted(draws.unknown))}). Keep its calls unsplit: "
                    "samestep.batch_dim(model, dim=None)."
                )
            value = module_outputs.outcome(module, outputs, plan.sides)
            result, left = module_outputs.gather_outcome(value, plan.joints, split, what=name)
        module_outputs.assign_side_outputs(module, left)
        if check is not None:
            check.compare(result, plan, split)
        return result

    def _follow(self, module: nn.Module, given: CallArguments) -> None:
        """Follow the parameters of a module; repeat this once any module has registered new ones."""
        if self._followed_at.get(module) != _registered[0]:
            self._followed_at[module] = _registered[0]
            # Global batch norm, and slices of tensors with gradients, communicate within backward.
            communicates = self._options.batch_norm == "global" and any(
                isinstance(one, BatchNorm) for one in module.modules()
            )
            communicates = communicates or any(tensor.requires_grad for _, tensor in given.tensors())
            named = dict(module.named_parameters(prefix=type(module).__name__))
            self._gradients.follow(named.values(), may_overlap=not communicates, names=list(named))

    def own(self, total: int) -> int:
        """Return this rank's number of samples in a model call of `total` samples."""
        place = self._world.place
        if self._slicing is not None and self._slicing.split is not None:
            return total  # the script has only its slice
        return len(share(total, place.rank, place.size))

    def _followed(self, outputs: Any, given: CallArguments) -> Any:
        """Follow other tensors that get gradients in a call, such as those of the script."""
        own = [tensor for _, tensor in leaves(outputs) if isinstance(tensor, Tensor)]
        inputs = {id(tensor) for _, tensor in given.tensors()}
        found = [leaf for leaf in leaves_of(*own) if leaf.is_leaf and id(leaf) not in inputs]
        # A leaf that forward has created from its slice is no weight: it differs between ranks.
        sums = [(tuple(leaf.shape), float(leaf.detach().double().sum())) for leaf in found]
        theirs = self._world.all_gather_objects(sums)
        equal = [
            all(place < len(one) and one[place] == own for one in theirs) for place, own in enumerate(sums)
        ]
        self._gradients.follow(leaf for leaf, is_equal in zip(found, equal, strict=True) if is_equal)
        return outputs


@contextmanager
def splitting_calls(calls: CallSplitter) -> Iterator[None]:
    """Let `calls` split the module calls of the calling thread."""
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)


@contextmanager
def intercepted_calls() -> Iterator[None]:
    """Replace `nn.Module.__call__` and tensor hooks, so that `splitting_calls` can split calls."""
    counting = register_module_parameter_registration_hook(_count_registration)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # it traces a compiled module
                return original(module, *args, **kwargs)
            calls = _calls.get()
            if calls is None:
                return original(module, *args, **kwargs)
            return calls(original, module, args, kwargs)

        return call

    def register_hook(original: Callable[..., Any], tensor: Tensor, hook: Callable[..., Any]) -> Any:
        _refuse_within_slice("a hook on a tensor")
        return original(tensor, hook)

    def retain_grad(original: Callable[..., None], tensor: Tensor) -> None:
        _refuse_within_slice("retain_grad")
        original(tensor)

    hooks = {
        declarations.SPLIT_CALL: make,
        declarations.TENSOR_HOOK: wrapping(register_hook),
        declarations.RETAINED_GRAD: wrapping(retain_grad),
    }
    with ExitStack() as stack:
        stack.callback(counting.remove)
        stack.enter_context(attached_all(hooks))
        stack.enter_context(bypassed_modules.functional_calls())
        yield


def _refuse_within_slice(what: str) -> None:
    if is_within_slice():
        raise UsageError(
            f"{what} within a split call gets a slice. Keep the model's calls unsplit: "
            "samestep.batch_dim(model, dim=None)."
        )


def _count_registration(*_: Any) -> None:
    _registered[0] += 1


_registered = [0]
"""The number of parameters that modules of this process have registered while calls are split."""


def current_gradients() -> Gradients | None:
    """Return the gradient synchronizer of the calling thread's script; None if no calls are split."""
    calls = _calls.get()
    return None if calls is None else calls._gradients  # noqa: SLF001 - the same module


def own_samples(total: int) -> int:
    """Return this rank's number of samples in a model call of `total` samples by the calling thread."""
    calls = _calls.get()
    return total if calls is None else calls.own(total)


def _is_recomputed() -> bool:
    """Return whether a backward or a slice makes this call, as an activation checkpoint does."""
    return is_within_slice() or torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public spelling
