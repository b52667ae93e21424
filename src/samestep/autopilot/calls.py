"""Splits the outermost calls of modules with parameters across the ranks."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from samestep.autopilot.account import Account, calling_site
from samestep.autopilot.bypassed import (
    FUNCTIONAL,
    TRANSFORMED,
    functional_calls,
    is_functional,
    is_transformed,
    note_direct_forward,
)
from samestep.autopilot.cut import Cut
from samestep.autopilot.equivalence_check import FEWER, EquivalenceCheck
from samestep.autopilot.forward_reductions import watching_reductions
from samestep.autopilot.gradients import Gradients, leaves_of
from samestep.autopilot.guards import (
    Attributes,
    changed,
    observer,
    plain_arguments,
    plain_attributes,
    without,
)
from samestep.autopilot.memory import never_tried_again
from samestep.autopilot.norms import normalises
from samestep.autopilot.options import DEFAULTS, Options
from samestep.autopilot.plans import Given, SplitPlan
from samestep.autopilot.recomputed import is_within_slice
from samestep.autopilot.sample_check import CheckSchedule, SampleCheck
from samestep.autopilot.sample_reads import GuardedReads
from samestep.autopilot.sides import continues, cut_again, leave, outcome, put_together
from samestep.autopilot.slice_call import Forward, call_slice, draws_by
from samestep.autopilot.slicing import Slicing
from samestep.base.errors import OutOfStep, UsageError
from samestep.sharding.share import share
from samestep.watch.drawn import Drawn
from samestep.watch.tree import leaves
from samestep.world.world import World

Kind: TypeAlias = tuple[Any, ...]
_calls: ContextVar["Calls | None"] = ContextVar("samestep_calls", default=None)


STATES = 8
"""Values of the guards of one signature that are all checked; past them, each that doubles their number."""

FAILED = "its first call of this kind raised an error"
"""Why a call is unsplit that has no verdict."""
NO_TENSORS = "it is called without dense tensors that have dimensions"

LAZY = "its parameters have no shapes before its first call"
OTHER_STATE = "it goes on from the state of a batch of another size"
TRIALS = 3
"""Sizes of calls of one signature that are checked before the signature stays unsplit for good."""
SIZES = 4
"""Sizes of calls that can be split, of one signature, that are all checked; past them, as with `STATES`."""


class Calls:
    """Shares out the calls of one rank's script.

    Args:
        world: the ranks.
        gradients: told of what is computed with.
        account: told of each call.
        options: the options for split calls.
        slicing: which batches the script has slices of already, under ``--split loader``.
        before: done before each of the script's calls.
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
        self._plans: WeakKeyDictionary[nn.Module, dict[Kind, SplitPlan | None]] = WeakKeyDictionary()
        self._whys: WeakKeyDictionary[nn.Module, dict[Kind, str]] = WeakKeyDictionary()
        self._looked: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[nn.Module, dict[Kind, list[Any]]] = WeakKeyDictionary()
        self._counted: WeakKeyDictionary[nn.Module, set[tuple[int, str]]] = WeakKeyDictionary()
        self._tried: WeakKeyDictionary[nn.Module, dict[Kind, set[Any]]] = WeakKeyDictionary()
        self._new_states: WeakKeyDictionary[nn.Module, Counter[Kind]] = WeakKeyDictionary()
        self._schedule = CheckSchedule(world.place.size, options.check_every)

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module, and share the call out if it is worth it."""
        if self._inside or next(module.parameters(), None) is None or _is_recomputed():
            return forward(module, *args, **kwargs)
        self._account.failed.check(self._world.place.size)
        if is_functional() or is_transformed():
            return self._unsplit(forward, module, Given(args, kwargs))
        self._before()
        self._inside = True
        try:
            with never_tried_again(f"a call of {type(module).__name__}"):
                if self._slicing is not None and self._slicing.cut is not None:
                    self._follow(module, Given(args, kwargs))
                    return self._slicing.call(forward, module, args, kwargs)
                return self._shared(forward, module, Given(args, kwargs))
        finally:
            self._inside = False

    def _unsplit(self, forward: Forward, module: nn.Module, given: Given) -> Any:
        """Call a module that is not called as itself: on all ranks in full, with all that it calls."""
        why = FUNCTIONAL if is_functional() else TRANSFORMED
        self._account.note_whole(f"{type(module).__name__} at {calling_site()}", why)
        self._inside = True
        try:
            return forward(module, *given.args, **given.kwargs)
        finally:
            self._inside = False

    def _shared(self, forward: Forward, module: nn.Module, given: Given) -> Any:
        plain = plain_attributes(module)
        kind = self._kind(module, given, plain)
        plans = self._plans.setdefault(module, {})
        what = f"{type(module).__name__} at {calling_site()}"
        obstacle = self._obstacle(module, given)
        if obstacle is not None:
            self._account.note_whole(what, obstacle)
            return forward(module, *given.args, **given.kwargs)
        with torch.inference_mode(mode=False):  # what is made for gradients is used outside of it
            self._follow(module, given)
        if self._is_checked(module, kind, given, plans.get(kind)):
            note_direct_forward(self._account, module)
            check = EquivalenceCheck(forward, module, given, self._world)
            verdict = check.run()
            kind = self._without_own(module, given, plain, kind)
            plans[kind] = verdict.plan
            if verdict.plan is None:
                self._whys.setdefault(module, {})[kind] = verdict.why
            else:
                if verdict.printed:
                    self._account.note_prints(what, main=self._world.place.is_main)
                if self._options.are_serial:
                    self._account.split[what] += 1
                    return self._followed(verdict.outputs, given)
                # It was checked as it is on one worker; it is computed as the user wants it.
                check.restore()
                return self._followed(self._made(forward, module, given, verdict.plan, what), given)
        plan = plans.get(kind)
        if plan is None:
            self._account.note_whole(what, self._whys.get(module, {}).get(kind, FAILED))
            return forward(module, *given.args, **given.kwargs)
        return self._made(forward, module, given, plan, what)

    def _obstacle(self, module: nn.Module, given: Given) -> str | None:
        """Return why this call stays unsplit without a check of its signature; None if a check decides."""
        if not any(max(tensor.shape[:2]) >= self._world.place.size for _, tensor in given.tensors()):
            return FEWER if given.tensors() else NO_TENSORS
        if any(is_lazy(parameter) for parameter in module.parameters()):
            return LAZY
        return observer(module)

    def _kind(self, module: nn.Module, given: Given, plain: Attributes) -> Kind:
        """Return the signature of a call, with the values of its guards.

        Past some values, one that is new is taken for the last, if all so far could be split; and checked
        where the number of new ones has doubled.
        """
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _autocast(self._world.device)
        form = (module.training, *modes, given.form())
        state = (plain_arguments(given), without(plain, self._counted.get(module, ())))
        known = self._states.setdefault(module, {}).setdefault(form, [])
        if state in known:
            return form, state
        counts = self._new_states.setdefault(module, Counter())
        counts[form] += 1
        if counts[form] <= STATES or counts[form].bit_count() == 1:
            known.append(state)
        else:
            plans = self._plans.get(module, {})
            state = next((one for one in known if plans.get((form, one)) is None), known[-1])
        return form, state

    def _without_own(self, module: nn.Module, given: Given, plain: Attributes, kind: Kind) -> Kind:
        """Return the kind without what the call itself has changed, which tells nothing of the next."""
        own = changed(plain, plain_attributes(module)).keys()
        if not own:
            return kind
        self._counted.setdefault(module, set()).update(own)
        self._states[module][kind[0]].remove(kind[1])
        return self._kind(module, given, plain)

    def _made(self, forward: Forward, module: nn.Module, given: Given, plan: SplitPlan, what: str) -> Any:
        """Make a call by its plan, if there are enough samples."""
        total, size = given.total(plan.dims), self._world.place.size
        is_local = self._options.batch_norm == "local" and normalises(module)
        if total is None or total < size or (is_local and total < 2 * size):
            few = total is None or total < size
            self._account.note_whole(what, FEWER if few else "batch norm over a slice of one sample")
            return forward(module, *given.args, **given.kwargs)
        if not continues(module, plan.joints, plan.sides, total):
            self._account.note_whole(what, OTHER_STATE)
            return forward(module, *given.args, **given.kwargs)
        self._account.split[what] += 1
        self._number += 1
        if is_local:
            self._account.note_exception("batch norm: over each worker's slice (--batch-norm local)")
        if plan.draws and self._options.random == "per-worker":
            self._account.note_exception("random numbers: each worker's own (--random per-worker)")
        try:
            return self._split(forward, module, given, plan, Cut(self._world, total))
        except Exception as error:
            self._account.failed.note(type(module).__name__, self._number, error)
            raise

    def _split(self, forward: Forward, module: nn.Module, given: Given, plan: SplitPlan, cut: Cut) -> Any:
        name = type(module).__name__
        before = None if plan.draws is not None else Drawn.now(self._world.device)
        check = None
        if self._options.are_serial and self._schedule.is_due(module, grad=torch.is_grad_enabled()):
            check = SampleCheck(forward, module, given, self._world, draws=plan.draws is not None)
        if plan.sides:
            cut_again(module, plan.joints, plan.sides, cut)
        draws = draws_by(plan.draws, cut)
        own, reads = given.cut(cut, plan.dims), GuardedReads(plan.reads, name) if plan.reads else None
        with watching_reductions(when=plan.watches_reductions) as watching:
            with watching or nullcontext():
                outputs = call_slice(
                    forward, module, own, cut, draws=draws, options=self._options, reads=reads
                )
            if before is not None and not before.same(Drawn.now(self._world.device)):
                raise OutOfStep(
                    f"{name} drew random numbers, and had drawn none in its equivalence check: the workers' "
                    "random streams differ now. Keep its calls unsplit: samestep.split(model, dim=None)."
                )
            if draws is not None and draws.unknown:
                raise OutOfStep(
                    f"{name} drew random numbers otherwise than in its equivalence check "
                    f"({'; '.join(sorted(draws.unknown))}). Keep its calls unsplit: "
                    "samestep.split(model, dim=None)."
                )
            value = outcome(module, outputs, plan.sides)
            result, left = put_together(value, plan.joints, cut, what=name)
        leave(module, left)
        if check is not None:
            check.compare(result, plan, cut)
        return result

    def _follow(self, module: nn.Module, given: Given) -> None:
        """Follow the parameters of a module; looked at again once any module has been given new ones."""
        if self._looked.get(module) != _registered[0]:
            self._looked[module] = _registered[0]
            # Global batch norm and slices of what has a gradient itself exchange within backward.
            exchanging = self._options.batch_norm == "global" and any(
                isinstance(one, BatchNorm) for one in module.modules()
            )
            exchanging = exchanging or any(tensor.requires_grad for _, tensor in given.tensors())
            named = dict(module.named_parameters(prefix=type(module).__name__))
            self._gradients.follow(named.values(), may_overlap=not exchanging, names=list(named))

    def own(self, total: int) -> int:
        """Return how many of the samples that the script calls a model with are this rank's."""
        place = self._world.place
        if self._slicing is not None and self._slicing.cut is not None:
            return total  # the script has its slice alone
        return len(share(total, place.rank, place.size))

    def _is_checked(self, module: nn.Module, kind: Kind, given: Given, plan: SplitPlan | None) -> bool:
        """Return whether a call is checked: one of a new size, which may tell more than those before.

        A model may branch on a size; and sizes that were equal by chance may have hidden which dimension is
        which.
        """
        sizes = tuple(tensor.shape for _, tensor in given.tensors())
        tried = self._tried.setdefault(module, {}).setdefault(kind, set())
        if sizes in tried:
            return False
        if plan is None:
            if len(tried) >= TRIALS:
                return False
        elif (given.total(plan.dims) or 0) < self._world.place.size:
            return False
        tried.add(sizes)
        return plan is None or len(tried) <= SIZES or len(tried).bit_count() == 1

    def _followed(self, outputs: Any, given: Given) -> Any:
        """Follow what the module computes with beside its parameters, such as tensors of the script."""
        own = [tensor for _, tensor in leaves(outputs) if isinstance(tensor, Tensor)]
        inputs = {id(tensor) for _, tensor in given.tensors()}
        found = [leaf for leaf in leaves_of(*own) if leaf.is_leaf and id(leaf) not in inputs]
        # A leaf that forward itself has made of its slice is no weight: it is another one on each rank.
        sums = [(tuple(leaf.shape), float(leaf.detach().double().sum())) for leaf in found]
        theirs = self._world.all_gather_objects(sums)
        alike = [
            all(place < len(one) and one[place] == own for one in theirs) for place, own in enumerate(sums)
        ]
        self._gradients.follow(leaf for leaf, is_alike in zip(found, alike, strict=True) if is_alike)
        return outputs


@contextmanager
def sharing_out(calls: Calls) -> Iterator[None]:
    """Within, the calling thread's calls of modules go through `calls`."""
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)


@contextmanager
def outermost_calls() -> Iterator[None]:
    """Make all modules of this process check whether their calls are split."""
    original: Callable[..., Any] = nn.Module.__call__
    counting = register_module_parameter_registration_hook(_count_registration)

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # it looks into a module that is called compiled
            return original(module, *args, **kwargs)
        calls = _calls.get()
        return original(module, *args, **kwargs) if calls is None else calls(original, module, args, kwargs)

    hook_on, retain_on = Tensor.register_hook, Tensor.retain_grad

    def register_hook(tensor: Tensor, hook: Callable[..., Any]) -> Any:
        _refuse_within_slice("a hook on a tensor")
        return hook_on(tensor, hook)  # type: ignore[no-untyped-call]

    def retain_grad(tensor: Tensor) -> None:
        _refuse_within_slice("retain_grad")
        retain_on(tensor)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    Tensor.register_hook = register_hook  # type: ignore[method-assign]
    Tensor.retain_grad = retain_grad  # type: ignore[method-assign, assignment]
    try:
        with functional_calls():
            yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        Tensor.register_hook = hook_on  # type: ignore[method-assign]
        Tensor.retain_grad = retain_on  # type: ignore[method-assign]
        counting.remove()


def _refuse_within_slice(what: str) -> None:
    if is_within_slice():
        raise UsageError(
            f"{what} within a split call would see a slice. Keep the model's calls unsplit: "
            "samestep.split(model, dim=None)."
        )


def _count_registration(*_: Any) -> None:
    _registered[0] += 1


_registered = [0]
"""The number of parameters that modules of this process have got while calls are split."""


def current_gradients() -> Gradients | None:
    """Return who averages the gradients of the calling thread's script."""
    calls = _calls.get()
    return None if calls is None else calls._gradients  # noqa: SLF001 - of the same idea


def own_samples(total: int) -> int:
    """Return how many of the samples that the calling thread's script calls a model with are this rank's."""
    calls = _calls.get()
    return total if calls is None else calls.own(total)


def _autocast(device: torch.device) -> tuple[bool, ...]:
    """Return where autocast is on: on the CPU, on this rank's device."""
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled(device.type)


def _is_recomputed() -> bool:
    """Return whether a backward calls: for what a checkpoint has not kept, of a slice or of a whole call."""
    return is_within_slice() or torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public spelling
