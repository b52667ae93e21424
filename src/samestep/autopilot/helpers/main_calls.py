"""Splits the script's calls of modules between the main rank and its helpers."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from samestep.autopilot.equivalence.check import Pace, Verdict
from samestep.autopilot.equivalence.effects import without_stdout
from samestep.autopilot.equivalence.refusal import KEPT_UNSPLIT, refusal
from samestep.autopilot.equivalence.split_comparison import CheckSchedule, SampleCheck, in_one_line
from samestep.autopilot.equivalence.weight_access import CallLock
from samestep.autopilot.helpers.call_states import (
    AT_ONCE_S,
    CHECKED,
    LOSES,
    MOST_SKIPPED,
    PER_CALL_S,
    Checking,
    CheckTime,
    ModuleCalls,
    SignatureCalls,
    State,
)
from samestep.autopilot.helpers.exchange import Exchange
from samestep.autopilot.helpers.helper_processes import Helpers
from samestep.autopilot.helpers.mirrors import MirrorError, MirrorState
from samestep.autopilot.helpers.signal_handlers import is_of_signal
from samestep.autopilot.helpers.slices import PRINTS, CallGraph, CallResult, without_exit
from samestep.autopilot.helpers.split_node import Attempt, NodeCall, as_node
from samestep.autopilot.helpers.surroundings import CastWeights, Surroundings
from samestep.autopilot.script.call_account import FEWER, Account, called_in_parts
from samestep.autopilot.script.options import Options
from samestep.autopilot.split import bypassed_modules
from samestep.autopilot.split.call_arguments import CallArguments, declared_dims
from samestep.autopilot.split.call_plans import (
    SplitPlan,
    assign_side_outputs,
    can_continue,
    continues,
    outcome,
)
from samestep.autopilot.split.call_signatures import CallSignatures, Signature, are_few, sizes_of
from samestep.autopilot.split.guards import Attributes, Reach, hooked_module, observer, recognized, unfollowed
from samestep.autopilot.split.operations import OtherBranchError
from samestep.autopilot.split.shared_memory import with_views
from samestep.autopilot.split.short_calls import MADE_AGAIN, SAVE_TIME, CallKind, FreshModules, ShortCalls
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import OtherRankFailedError
from samestep.autopilot.split_calls import (
    LAZY,
    OTHER_STATE,
    WRAPPERS,
    ModuleCall,
    Obstacle,
    is_inside,
    is_recomputed,
    may_call_parts,
)
from samestep.autopilot.state.saved_state import HeldTensors, SavedState, SideOutput, carried_by
from samestep.base.errors import DeviceFailed, PeerLost
from samestep.hooks import module_parts
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import mapped
from samestep.hooks.thread_values import bound

LOST = "its helper was lost"
NO_HELPERS = "there are no helpers any more"
ON_DEVICE = "it is on a device, and these workers share the CPU; those of `samestep run` have a device each"
ON_META = "it is called on the meta device, whose tensors have no numbers"
DIFFERS = "a call after its check gave another result when it was split"
BESIDE = "another thread calls a model at the same time"
RAISED = "a slice of its batch raised an error"
KEEPS_OTHER = "it keeps tensors that the checked calls did not keep"
WRITES_OTHER = "it writes to tensors to which the checked calls did not write"
OTHER_BRANCH = "it takes a branch that the checked calls did not take"
_SURPRISES = (KEEPS_OTHER, WRITES_OTHER, OTHER_BRANCH)
"""Reasons of one call, after which the next is checked."""


CallState: TypeAlias = tuple[Reach, Attributes, Signature, Surroundings]
"""The objects that a call reaches, the attributes that guard its plan, its signature, and its modes."""


def _raised(error: str) -> str:
    """Return why a call is unsplit one of whose slices has raised an error, given in one line."""
    return OTHER_BRANCH if error.startswith(OtherBranchError.__name__) else f"{RAISED} ({error})"


def _concerns_whole(why: str) -> bool:
    """Return whether a reason why a call is unsplit is none for its parts."""
    return why not in (KEPT_UNSPLIT, FEWER)


class MainCalls:
    """Splits the model calls of the script, which only the main rank runs."""

    def __init__(self, helpers: Helpers, account: Account, options: Options) -> None:
        self._helpers, self._account, self._options = helpers, account, options
        self._slices, self.device = helpers.slices, helpers.slices.world.device
        self._size, self._process = helpers.size, os.getpid()
        self.exchange = Exchange(helpers)
        self._known: WeakKeyDictionary[nn.Module, ModuleCalls] = WeakKeyDictionary()
        self._signatures, self._fresh = CallSignatures(), FreshModules()
        self._schedule = CheckSchedule(self._size, options.check_every)
        self._short_calls = ShortCalls(self.device, account, enabled=options.short_calls == "auto")
        self._lock, self._plans = CallLock(), 0
        self._check_time, self.cast_weights = CheckTime(), CastWeights()
        self.gradients = self._slices.gradients

    def end(self) -> None:
        """Let the helpers end."""
        if self.is_here():
            self._helpers.end()

    def is_here(self) -> bool:
        """Return whether this is the process that has the helpers, and not one that the script has forked."""
        return os.getpid() == self._process

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that no other module calls, split if this is possible."""
        if type(module).__name__ in WRAPPERS or is_recomputed():
            return forward(module, *args, **kwargs)
        if module not in self._known and next(module_parts.parameters(module), None) is None:
            return forward(module, *args, **kwargs)
        call = ModuleCall(forward, module, CallArguments(args, kwargs))
        if not self.is_here():
            return call.unsplit()
        is_locked, inside = self._lock.acquire_for(module), is_inside.set(True)
        try:
            if is_locked:
                return self._called(call)
            self._account.note_unsplit(self._account.place_of(module), BESIDE)
            return call.unsplit()
        finally:
            is_inside.reset(inside)
            if is_locked:
                self._lock.release()

    def _unsplit(self, call: ModuleCall, why: str, *, in_parts: bool = False) -> Any:
        """Compute a call on this rank; `in_parts`, its calls of other modules may be split."""
        place = self._account.place_of(call.module)
        self._account.note_unsplit(place, why)
        self._helpers.note_unsplit(at_once=why in (CHECKED, *SAVE_TIME))
        if torch.is_grad_enabled():
            self._account.steps.note_call(place, is_split=False)
        if not in_parts:
            return call.unsplit()
        before, modules = self._account.split.total(), (*called_in_parts.get(), call.module)
        try:
            with (
                self._lock.released(call.module),
                bound(called_in_parts, modules),
                bound(is_inside, False),  # noqa: FBT003 - the value
            ):
                return call.unsplit()
        finally:
            if self._account.split.total() > before:
                self._account.in_parts.add((place, why))

    def _called(self, call: ModuleCall) -> Any:
        module, arguments = call.module, call.arguments
        kind = self._short_calls.begin(module, arguments)
        if kind.is_unsplit and kind.calls:  # first, since these calls are short
            return self._saving_time(call, kind)
        if kind.has_few:
            return self._unsplit(call, FEWER)
        known = self._known.setdefault(module, ModuleCalls())
        self.exchange.recover()
        state = self._obstacle(call) or self._state_of(call, known)
        if isinstance(state, Obstacle):
            return self._unsplit(call, state.why, in_parts=not state.of_parts and may_call_parts(module))
        calls = known.by_signature[state[2]]
        if kind.is_unsplit and calls.state is not State.UNSPLIT:
            return self._saving_time(call, kind)
        return self._checked(call, kind, state, calls)

    def _checked(self, call: ModuleCall, kind: CallKind, state: CallState, calls: SignatureCalls) -> Any:
        """Compute a call in the way of its signature, after a check of it where one is due."""
        (_, plain, signature, _), module, arguments = state, call.module, call.arguments
        if why := self._reason_to_wait(call, calls):
            return self._unsplit(call, why)
        is_checked, unsplit = self._is_checked(calls, arguments), None
        if is_checked:
            unsplit = self._check(call, calls)
        if (checking := calls.check_of(arguments)) is not None:
            return self._unsplit_beside(call, checking, plain, signature)
        if calls.state is not State.SPLIT or not calls.sizes.may_be_split(arguments):
            why = calls.sizes.why(arguments, calls.why)
            kind.has_few = why == FEWER and are_few(sizes_of(arguments), self._size)
            return self._unsplit(call, why, in_parts=calls.splits_parts)
        is_due = self._is_comparison_due(call, plain, signature)
        outputs = self._by_plan(call, calls, kind, state, unsplit, is_compared=is_due)
        if is_checked:
            self._leave_out_own_changes(module, plain, signature)
        return outputs

    def _saving_time(self, call: ModuleCall, kind: CallKind) -> Any:
        outputs = self._unsplit(call, kind.why)
        self._short_calls.end(kind, call.module)
        return outputs

    def _reason_to_wait(self, call: ModuleCall, calls: SignatureCalls) -> str | None:
        """Return why a call is unsplit whatever a check of it would find, if it is."""
        if calls.lose_helpers:
            return LOSES
        may_begin = self._options.checks_at_once or self._check_time.may_begin
        is_late = calls.state is State.NEW and not may_begin
        return CHECKED if is_late and refusal(call.module, self.device) is None else None

    def _is_checked(self, calls: SignatureCalls, arguments: CallArguments) -> bool:
        """Return whether a call begins a check, or continues one."""
        if calls.is_refuted:
            return False
        if (checking := calls.check_of(arguments)) is not None:
            return self._continues(checking, arguments)
        dims = {} if calls.plan is None else calls.plan.dims
        total = None if calls.plan is None else arguments.total(dims) or 0
        return calls.sizes.are_checked(arguments, total, self._size, dims, have_one_way=calls.have_one_way)

    def _is_comparison_due(self, call: ModuleCall, plain: Attributes, signature: Signature) -> bool:
        """Return whether samples of a split call are compared with those of an unsplit one."""
        module, signatures = call.module, self._signatures
        is_due = self._schedule.is_due(module, grad=torch.is_grad_enabled())
        has_new_sizes = signatures.have_sizes_of_new_interval(module, call.arguments, signature)
        is_new = signatures.counts_to_new_interval(module, plain) or has_new_sizes
        return is_due or (is_new and self._options.check_every != 0)

    def _unsplit_beside(
        self, call: ModuleCall, checking: Checking, plain: Attributes, signature: Signature
    ) -> Any:
        """Compute a call of a check that later calls continue."""
        began = monotonic()
        outputs = self._unsplit(call, CHECKED)
        checking.unsplit_s = monotonic() - began
        if self._leave_out_own_changes(call.module, plain, signature):
            self.exchange.drop_check(checking.number)  # the next call may do something else
        return outputs

    def _state_of(self, call: ModuleCall, known: ModuleCalls) -> CallState | Obstacle:
        """Return what a module reaches, its guards, and the signature of a call; or why they are unknown."""
        try:
            reach = Reach.of(call.module)
            why = recognized(call.module, reach, call.arguments) or unfollowed(call.arguments)
            if why is not None:
                return Obstacle(why, of_parts=False)
            plain = {**reach.plain, **reach.of_tensors}
            modes = Surroundings.now(call.module, self.device)
            if self.cast_weights.have_changed(call.module, modes):
                return Obstacle("autocast computes with casts of weights that have changed since")
            signature = self._signatures.signature(
                call.module, call.arguments, plain, known.failed(), modes.of_process
            )
            return reach, plain, signature, modes
        except Exception as error:  # noqa: BLE001 - of any object of the script
            return Obstacle(f"its state cannot be read ({in_one_line(error)})")

    def _continues(self, checking: Checking, arguments: CallArguments) -> bool:
        """Return whether a call continues a check, or begins it again."""
        check = self._slices.checks.get(checking.number)
        if check is None:
            return True
        if self._check_time.is_over:
            return False
        can_continue = check.may_continue(arguments)
        checking.skipped = 0 if can_continue else checking.skipped + 1
        if checking.skipped == MOST_SKIPPED:
            self.exchange.drop_check(checking.number)
        return can_continue

    def _leave_out_own_changes(self, module: nn.Module, plain: Attributes, signature: Signature) -> bool:
        """Let the calls of a signature have the one without the attributes that the call has changed.

        Returns:
            whether there are any that were not known to change.
        """
        of_module = self._known[module].by_signature
        calls = of_module[signature]
        without, are_new = self._signatures.without_own_changes(module, plain, signature)
        if not are_new:
            return False
        of_module[without] = calls
        calls.forget_sizes()  # the next call may do something else, and is checked too
        return True

    def _obstacle(self, call: ModuleCall) -> Obstacle | None:
        """Return why a call cannot be split, if that is known before it is checked."""
        if (why := self._obstacle_of_parts(call)) is not None:
            return Obstacle(why)
        if not call.arguments.tensors() and not call.arguments.may_have_samples(self._size):
            return Obstacle(call.without_samples(), of_parts=False)
        hooked = hooked_module(call.module)
        return None if hooked is None else Obstacle(f"a hook on {hooked} would get slices", of_parts=False)

    def _obstacle_of_parts(self, call: ModuleCall) -> str | None:
        """Return why neither a call nor those of its parts can be split."""
        module, arguments = call.module, call.arguments
        if self._helpers.are_lost:
            return NO_HELPERS
        if (why := bypassed_modules.obstacle() or observer()) is not None:
            return why
        if arguments.tensors() and not arguments.may_have_samples(self._size):
            return FEWER
        if any(is_lazy(parameter) for parameter in module_parts.parameters(module)):
            return LAZY
        return self._obstacle_of_device(call) or (MADE_AGAIN if self._fresh.waits(module) else None)

    def _obstacle_of_device(self, call: ModuleCall) -> str | None:
        if any(tensor.is_meta for _, tensor in call.arguments.tensors()):
            return ON_META
        return ON_DEVICE if self._helpers.shares_memory and call.device_type != "cpu" else None

    def _check(self, call: ModuleCall, calls: SignatureCalls) -> SampleCheck | None:
        """Check whether the calls of a signature can be split, or continue their check.

        Returns:
            the call computed unsplit, if it can be split.
        """
        module, arguments = call.module, call.arguments
        bypassed_modules.note_direct_forward(self._account, module)
        if why := refusal(module, self.device):
            calls.stay_unsplit(why, in_parts=_concerns_whole(why) and may_call_parts(module))
            return None
        checking = calls.check_of(arguments)
        if checking is None:
            self._plans += 1
            checking = calls.begin_check(self._plans, arguments)
            self.exchange.drop_with(module, checking.number)
        before = self._check_time.taken_s
        with self._check_time.taken(), self.exchange.open():
            verdict = self._verdict(call, calls, checking)
        self._account.steps.note_check(self._check_time.taken_s - before)
        if verdict is None:
            return None
        calls.trace = verdict.trace
        if self._options.explain:
            self._account.explain(self._account.place_of(module), verdict.trace.tried)
        if verdict.plan is None:
            self.exchange.drop_check(checking.number)
            in_parts = _concerns_whole(verdict.why) and may_call_parts(module)
            calls.fail_check(checking, verdict.trace.explained(verdict.why), arguments, in_parts=in_parts)
        else:
            calls.pass_check(checking, verdict.plan, arguments, self._size)
            calls.note_split(arguments, checking.number, self.exchange.mirrored[module].number)
        return verdict.unsplit

    def _pace(self, call: ModuleCall, checking: Checking, *, begins: bool) -> Pace:
        """Return the pace of a check at this call; a check itself prints nothing."""
        expect = partial(self._account.note_check, self._account.place_of(call.module), stream=sys.stderr)
        if self._options.checks_at_once:
            return Pace(expect=expect)
        end = monotonic() + (AT_ONCE_S if begins else max(PER_CALL_S, checking.unsplit_s))
        return Pace(lambda: monotonic() > end, expect)

    def _verdict(self, call: ModuleCall, calls: SignatureCalls, checking: Checking) -> Verdict | None:
        """Let all ranks check a call; None if the check is not completed, also as a helper was lost."""
        module, number = call.module, checking.number
        begins = number not in self._slices.checks
        pace = self._pace(call, checking, begins=begins)
        try:
            modes, streams = Surroundings.now(module, self.device), RngState.now(self.device)
            declared = declared_dims(module, call.arguments)  # which only this process knows
            self.exchange.send_check(call, number, modes, streams, declared=declared, begins=begins)
            verdict: Verdict | None
            has_cause = False
            try:
                self._helpers.share_cores()
                verdict = self._slices.check(
                    *(number, call.forward, module, call.arguments, declared),
                    begins=begins,
                    pace=pace,
                )
            except PeerLost:
                raise
            except Exception as error:
                with suppress(OtherRankFailedError):
                    self._slices.world.fail()
                if isinstance(error, DeviceFailed) or is_of_signal(error):
                    raise
                has_cause = not isinstance(error, OtherRankFailedError)
                verdict = Verdict(None, why=f"it cannot be checked ({in_one_line(error)})")
            error_there = self._helpers.line.collect()
            if error_there and not has_cause:
                verdict = Verdict(None, why=f"it cannot be checked ({error_there})")
        except MirrorError as error:
            return Verdict(None, why=str(error))
        except PeerLost as error:
            self.exchange.restart(error)
            calls.forget()
            calls.losses += 1
            return None
        self.exchange.plans.add(number)
        try:
            self.exchange.mirrored[module].record(MirrorState.now(module))
        except MirrorError as error:
            return Verdict(None, why=str(error))
        return verdict

    def _by_plan(
        self,
        call: ModuleCall,
        calls: SignatureCalls,
        kind: CallKind,
        state: CallState,
        unsplit: SampleCheck | None,
        *,
        is_compared: bool,
    ) -> Any:
        """Return the outputs of a call by its plan, compared with those of `unsplit` from its check.

        The modes in which a check computes may hide a difference. Without a check the unsplit call is
        computed here if `is_compared` is set.
        """
        module, arguments, numbered = call.module, call.arguments, calls.plan_of(call.arguments)
        assert numbered is not None
        _, plan = numbered
        total, size = arguments.total(plan.dims), self._size
        if total is None or total < size:
            return self._unsplit(call, FEWER)
        if not can_continue(module, plan.gatherings, plan.sides, total):
            return self._unsplit(call, OTHER_STATE)
        carried, (reach, *_, modes) = carried_by(module), state
        _, left = outcome(module, None, {*carried, *plan.sides})
        saved = SavedState(module) if carried or self._changes(module, plan) else None
        # A saved state restores all of it.
        held = HeldTensors(module, (value for _, value in reach.values) if saved is None else ())
        attempt = Attempt(call, carried, left, modes, RngState.now(self.device), reach, saved, held, numbered)
        is_compared |= plan.operations is None and self._may_differ(attempt, calls)
        if unsplit is None and (is_compared or self._is_first_to_continue(call, calls, plan, total)):
            draws = plan.draws is not None
            forward = without_exit(call.forward)
            unsplit = SampleCheck.computed(forward, module, arguments, self.device, draws=draws)
        with self.exchange.open(), self._undone_if_interrupted(attempt):
            result = self._attempted(attempt, calls)
        if isinstance(result, CallResult):
            result = self._surprise(attempt, (*plan.sides, *carried)) or result
        if unsplit is not None and isinstance(result, CallResult):
            assign_side_outputs(module, result.sides)
            difference = unsplit.difference(result.outputs, plan)
            calls.is_refuted |= bool(difference)
            result = f"{DIFFERS}: {difference}" if difference else result
        if isinstance(result, str):
            self._undo(attempt)
            self._note_failure(attempt, calls, result)
            return self._unsplit(call, result, in_parts=calls.splits_parts)
        place = self._account.place_of(module)
        self._account.split[place] += 1
        calls.splits += 1
        assert attempt.mirror is not None
        calls.note_split(arguments, numbered[0], attempt.mirror.number)
        if kind.grad:
            self._account.steps.note_call(place, is_split=True)
        outputs = self._outputs(attempt, calls, result)
        self._record(module, plan)
        self._short_calls.end(kind, module)
        return outputs

    def _may_differ(self, attempt: Attempt, calls: SignatureCalls) -> bool:
        """Return whether a call of compiled code is the first of its kind: its operations are not watched."""
        (number, plan), call = attempt.plan, attempt.call
        known = self.exchange.mirrored.get(call.module)
        if self._options.check_every == 0:
            return False
        if known is None or not calls.has_split(call.arguments, number, known.number):
            return True
        try:
            return not known.serves(MirrorState.now(call.module, attempt.reach), rewrites=plan.rewrites)
        except MirrorError:  # it cannot be sent either
            return False

    def _changes(self, module: nn.Module, plan: SplitPlan) -> bool:
        """Return whether a call changes more than batch norm does, or may do so in a new branch."""
        of_plan = plan.sides or plan.rewrites or plan.reads_late or plan.watches_operations
        return bool(of_plan) or self._signatures.may_branch_anew(module)

    def _surprise(self, attempt: Attempt, expected: Sequence[SideOutput]) -> str:
        """Return what a split call has done that the checked ones had not; empty if it was as they were."""
        assert attempt.mirror is not None
        _, plan = attempt.plan
        if attempt.held.kept(attempt.call.module, expected, replaces_buffers=plan.rewrites) is not None:
            return KEEPS_OTHER
        return WRITES_OTHER if not plan.rewrites and attempt.mirror.is_rewritten() else ""

    def _note_failure(self, attempt: Attempt, calls: SignatureCalls, why: str) -> None:
        """Decide about the next calls after one that was split in vain."""
        if why == LOST:
            calls.losses += 1
            return
        module = attempt.call.module
        self.exchange.release(attempt.number)
        self.exchange.mirrored.pop(module, None)
        decide = calls.check_again if why in _SURPRISES else calls.stay_unsplit
        decide(why, in_parts=may_call_parts(module))

    def _is_first_to_continue(
        self, call: ModuleCall, calls: SignatureCalls, plan: SplitPlan, total: int
    ) -> bool:
        """Return whether a call is compared as it gets slices of state: the first of a size, few later."""
        if self._options.check_every == 0 or not plan.sides or not continues(call.module, plan, total):
            return False
        sizes = sizes_of(call.arguments)
        calls.continued[sizes] += 1
        return calls.continued[sizes].bit_count() == 1

    def _undo(self, attempt: Attempt) -> None:
        """Make the module and the generators as they were before a call that was split in vain."""
        if attempt.mirror is not None:
            attempt.mirror.restore_values()
        attempt.restore()
        attempt.streams.restore()

    @contextmanager
    def _undone_if_interrupted(self, attempt: Attempt) -> Iterator[None]:
        """Let a call that Ctrl-C or a handler ends have changed nothing: its module has slices of a state."""
        try:
            yield
        except BaseException:
            self._undo(attempt)
            raise

    def _watched(self, attempt: Attempt, calls: SignatureCalls) -> SplitPlan:
        """Return the plan of a call, whose operations are watched if it may take a branch of no check.

        A forward may ask for a size, and for anything of what a module holds: the form of a weight, whether
        a buffer is None, or two layers are one. Whatever of this has changed, the module's mirror is a new
        one.
        """
        (number, plan), module = attempt.plan, attempt.call.module
        assert attempt.mirror is not None
        has_split = calls.has_split(attempt.call.arguments, number, attempt.mirror.number)
        if has_split and not self._signatures.may_branch_anew(module):
            return plan
        if attempt.saved is None:
            attempt.saved = SavedState(module)
        return replace(plan, watches_operations=True)

    def _attempted(self, attempt: Attempt, calls: SignatureCalls) -> CallResult | str:
        """Return the results of a split call, or why there are none.

        Raises:
            Exception: what a handler of a signal has raised meanwhile.
        """
        call = attempt.call
        try:
            attempt.number = self.exchange.send_call(attempt)
            mirror = self.exchange.mirrored[call.module]
            attempt.note_mirror(mirror)
        except PeerLost as error:
            self.exchange.restart(error)
            return LOST
        except Exception as error:  # noqa: BLE001 - of any object of the script
            return str(error) if isinstance(error, MirrorError) else f"it cannot be sent ({error!r})"
        try:
            self._helpers.share_cores()
            plan = self._watched(attempt, calls)
            with without_stdout() as printed:
                result = self._slices.call(
                    *(plan, call.forward, call.module, mirror.weights, call.arguments),
                    carried=attempt.carried,
                    before=attempt.streams,
                )
        except PeerLost as error:
            self.exchange.restart(error)
            return LOST
        except Exception as error:
            follows = self._slices.world.step.has_ended
            self.exchange.fail()
            if is_of_signal(error):
                raise
            return self._failed_elsewhere(error) if follows else _raised(in_one_line(error))
        return PRINTS if printed.any else result

    def _failed_elsewhere(self, error: Exception) -> str:
        """Return why a call failed, given an error that follows from that of a helper's slice."""
        try:
            return _raised(self.exchange.failure_of_helpers() or in_one_line(error))
        except PeerLost as lost:
            self.exchange.restart(lost)
            return LOST

    def _record(self, module: nn.Module, plan: SplitPlan) -> None:
        """Record that the mirrors of a module are as the module, after a split call."""
        known = self.exchange.mirrored[module]
        known.note_written()
        if not (plan.sides or self._signatures.are_changed_by_calls(module)):
            known.record_values()
            return
        try:
            known.record(MirrorState.now(module), outcome(module, None, plan.sides))
        except MirrorError:  # the next call finds it, too
            del self.exchange.mirrored[module]

    def _outputs(self, attempt: Attempt, calls: SignatureCalls, result: CallResult) -> Any:
        """Return the outputs of a split call in the script's graph; assign its side outputs."""
        whole, sides, node = result.outputs, result.sides, None
        if result.graph is not None:
            self._slices.graphs[attempt.number] = result.graph
            node = NodeCall(self, attempt, calls, result)
            results = as_node(node, result.sources)
            with_gradients = (
                output.detach() if place in result.constants else output
                for place, output in enumerate(results)
            )
            by_id = dict(zip(map(id, result.graph.outputs), with_gradients, strict=True))
            whole, sides = mapped((whole, sides), lambda _, tensor: by_id.get(id(tensor), tensor))
        whole, sides = with_views((whole, sides), result.views)
        assign_side_outputs(attempt.call.module, sides)
        if node is not None and attempt.plan[1].reads_late:
            node.note_state()
        return whole

    def backward(
        self, number: int, gradients: Sequence[Tensor | None], calls: SignatureCalls, *, retain: bool
    ) -> list[Tensor | None] | None:
        """Let all ranks compute the backward of a call; return the gradients of its sources.

        None if a helper that had a part of the graph is lost, or if this is a forked process.
        """
        if not self.is_here():  # another thread may have had the lock at the fork
            return None
        with self._lock:
            self.exchange.recover()
            graph = self._slices.graphs.get(number)
            if graph is None:
                return None
            if not all(source.requires_grad for source in graph.sources):  # frozen since the call
                return None
            detached = [None if gradient is None else gradient.detach() for gradient in gradients]
            with self.exchange.open():
                return self._exchanged_backward(graph, number, detached, calls, retain=retain)

    def _exchanged_backward(
        self,
        graph: CallGraph,
        number: int,
        detached: list[Tensor | None],
        calls: SignatureCalls,
        *,
        retain: bool,
    ) -> list[Tensor | None] | None:
        try:
            self.exchange.send_backward(graph, number, detached, retain=retain)
        except PeerLost as error:
            self.exchange.restart(error)
            return None
        except OSError:  # there is no memory for it
            return None
        try:
            self._helpers.share_cores()
            return self._slices.backward(graph, detached, retain=retain)
        except PeerLost as error:
            calls.losses += 1
            self.exchange.restart(error)
        except OtherRankFailedError:
            pass
        except Exception as error:  # the call is computed again, and raises it unless it is of slices
            self.exchange.fail()
            if is_of_signal(error):
                raise
        return None
