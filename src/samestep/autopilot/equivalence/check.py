"""Checks whether a call gives the same results split and unsplit, before it is split in a run.

The inputs do not show whether a call can be split: samples may be compared with each other, the first
dimension may be time, a loss may be a mean of unequal parts. Nor does one batch prove it: see
`samestep.autopilot.equivalence.disturbance`. So each call signature is checked, for each way that its
shapes allow::

    other weights and samples, uneven slices, double precision     outputs, buffers, draws, gradients
    the call itself                                                outputs, buffers, draws

A way passes if the split call equals the unsplit call in both. If none passes, calls of this signature stay
unsplit: the main rank computes all of them, which is slower and correct.
"""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence import disturbance
from samestep.autopilot.equivalence.effects import WritesFileError, changing_no_files, quiet
from samestep.autopilot.equivalence.positions import CheckedPositions, InputUses, PositionTrace, is_integer
from samestep.autopilot.equivalence.refusal import refusal
from samestep.autopilot.equivalence.rounding import close, difference, largest, multiple
from samestep.autopilot.equivalence.split_comparison import (
    INDEPENDENT,
    SampleCheck,
    SplitComparison,
    SplitResult,
    SplitTrace,
    in_one_line,
)
from samestep.autopilot.equivalence.unsplit_call import MAKES_LEAF, SPARSE, ModuleRun, UnsplitCall, eagerly
from samestep.autopilot.script.call_account import FEWER
from samestep.autopilot.split.call_arguments import LIST, CallArguments, Dims, candidates
from samestep.autopilot.split.call_plans import ReducedOutput, SplitPlan, outcome
from samestep.autopilot.split.call_signatures import are_few, sizes_of
from samestep.autopilot.split.gradients import (
    TrainsError,
    gradients_of,
    sparse_places,
    sums,
    training_nothing,
    unaveraged,
)
from samestep.autopilot.split.guards import Attributes, changed, counters, kept_of_slice
from samestep.autopilot.split.sharded_autograd import keeps_objects, python_nodes
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import recomputations
from samestep.autopilot.state.reachable_state import is_compiled
from samestep.autopilot.state.sample_reads import Site
from samestep.base.errors import DeviceFailed, UsageError
from samestep.hooks import module_parts
from samestep.hooks.object_graph import Key
from samestep.hooks.tensor_tree import Path, leaves, text
from samestep.parallel.gradients.agreement import groups
from samestep.ranks.world.protocol import World

T = TypeVar("T")
LARGE = 5_000_000
"""The number of parameters above which a model is checked on fewer samples and one batch less: a guess.
Checks of such models take a sixth of the time."""
WRITES_FILES = "it writes to files when it is called"
TRAINS = "it calls backward or steps an optimizer itself"
_FACTORS = 2.0**20, 1.0, 2.0**-10, 2.0**-20
"""Factors of the gradients of outputs. All are tried where the script has a backward of its own, which
may limit large gradients of a weight, or drop small ones: guesses."""
_ENDS_CHECK = (WRITES_FILES, TRAINS, MAKES_LEAF, SPARSE)
"""Reasons that hold for every way."""
_UNCHECKED = "it cannot be checked with other weights and samples"
OTHER_ON_WORKERS = "its unsplit call is not the same on each worker"
UNLIKE_DRAWS = "it draws other random numbers in each call"
COMPILED_DRAWS = (
    "torch.compile draws dropout for a slice differently than for the whole batch; without torch.compile "
    "it can be split"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan of a signature, and this call computed unsplit; or the reason why its calls stay unsplit."""

    plan: SplitPlan | None
    unsplit: SampleCheck | None = None
    why: str = ""
    printed: bool = False
    trace: SplitTrace = field(default_factory=SplitTrace)
    """The ways that the check has tried."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The time that a check may take at one call."""

    is_over: Callable[[], bool] = lambda: False
    """Returns whether a later call continues the check."""
    expect: Callable[[float], object] = lambda _: None
    """Called with the seconds that the rest of the check may take."""


AT_ONCE = Pace()


@dataclass(eq=False, slots=True)
class _Call:
    """The call that continues a check."""

    module: nn.Module
    arguments: CallArguments
    run: ModuleRun
    weights: disturbance.DisturbedWeights
    whole: UnsplitCall | None = None
    """The results of the unsplit call, if they are known."""


class EquivalenceCheck:
    """The equivalence check of a call, or of several calls of one signature, each of which continues it.

    A long check is continued by later calls, which are computed unsplit: it is then executed beside the
    training. Between two of its comparisons the module and the generators are as the script left them.
    """

    def __init__(
        self,
        forward: Forward,
        module: nn.Module,
        arguments: CallArguments,
        world: World,
        declared: Dims | None = None,
    ) -> None:
        """Begin a check.

        Args:
            forward: calls the module.
            module: the module.
            arguments: the arguments of the first call.
            world: the ranks, all of which run the check equally.
            declared: the way that the script declares; None for all ways that the shapes allow.
        """
        self._forward, self._world = forward, world
        self._declared, self._pace = declared, AT_ONCE
        self._counters: list[Key] = []
        """The numbers with which the module counts its calls."""
        self._counting_tensors: list[str] = []
        self._counts = False
        """Whether the module counts its calls on any rank."""
        self._draws = False
        """Whether the module has drawn random numbers."""
        self._reads_late = False
        """Whether the backward may read what the script changes after the call."""
        self._has_beside = False
        """Whether another thread has drawn random numbers meanwhile."""
        self._is_large = sum(parameter.numel() for parameter in module_parts.parameters(module)) > LARGE
        self._comparison = SplitComparison(forward, module, world)
        self._uses = InputUses()
        self._trace = SplitTrace()
        self._present: _Call | None = None
        self.begin_call(module, arguments)
        self._ways = [*self._possible_ways(arguments)]
        self._comparisons = self._compare()

    @property
    def _call(self) -> "_Call":
        assert self._present is not None
        return self._present

    def restore(self) -> None:
        """Restore the module and the generators to their state before the call."""
        self._call.run.restore()

    def may_continue(self, arguments: CallArguments) -> bool:
        """Return whether a call of the signature can continue the check: it can be split in the same ways."""
        return [*self._possible_ways(arguments)] == self._ways

    def begin_call(self, module: nn.Module, arguments: CallArguments) -> None:
        """Let a call of the signature continue the check; the module may be another mirror of the same."""
        run = ModuleRun(self._forward, module, self._world.device)
        self._present = _Call(module, arguments, run, disturbance.DisturbedWeights(module))
        self._comparison.module = module

    def end_call(self) -> None:
        """Release what the check has kept of the present call: its arguments, and a copy of its state."""
        self._present = None
        del self._comparison.module

    def run(self, pace: Pace = AT_ONCE) -> Verdict | None:
        """Check all ways; the module and the generators then are as after the split call, or as before.

        Args:
            pace: says after each comparison whether the rest is left to a later call.

        Returns:
            None if a later call has to continue the check.

        Raises:
            UsageError: another thread of the script draws random numbers meanwhile.
        """
        if (why := refusal(self._call.module, self._world.device)) is not None:
            return Verdict(None, why=why)
        self._pace, verdict = pace, None
        with disturbance.parametrizations_computed(), training_nothing():
            for verdict in self._comparisons:
                if verdict is None and not self._comparison.agreed(not pace.is_over()):
                    return None
        assert verdict is not None
        if verdict.plan is None and (self._has_beside or self._call.run.has_beside):
            raise UsageError(
                "another thread of the script draws random numbers of Python or NumPy while "
                f"{type(self._call.module).__name__} is called, and no check can distinguish these from its "
                "own. Give that thread a generator of its own (random.Random(seed), "
                "numpy.random.default_rng(seed)), or run with -n 1."
            )
        return verdict

    def _compare(self) -> Iterator[Verdict | None]:
        """Yield None after each comparison, when a later call may continue; at last, yield the verdict."""
        reasons: list[str] = []
        if self._ways:
            self._uses = self._uses_of_inputs()
        for dims in self._ways:
            began = monotonic()
            why = yield from self._refuted(dims)
            if why and not reasons:
                self._pace.expect((monotonic() - began) * (len(self._ways) - 1))
            if not why and self._call.whole is None:
                self._call.run.dims = {} if is_compiled(self._call.module) else dims
                computed = self._computed_whole()
                if isinstance(computed, str):
                    yield Verdict(None, why=computed)
                    return
                self._call.whole = computed
            if not why and self._call.whole is not None:
                verdict = self._split(dims, self._call.whole)
                if verdict.plan is not None:
                    yield verdict
                    return
                why = verdict.why
            reasons.append(why)
            if why in _ENDS_CHECK:
                break
        self.restore()
        yield Verdict(None, why=self._likeliest(reasons), trace=self._trace)

    def _split(self, dims: Dims, whole: UnsplitCall) -> Verdict:
        """Split the call itself in a way that no disturbed call refutes."""
        result = self._comparison.split(self._call.run, self._call.arguments, dims, whole)
        guards = self._comparison.reads.guards(is_compiled=is_compiled(self._call.module))
        if isinstance(result, SplitResult) and not isinstance(guards, str):
            plan = self._plan(dims, whole, result, guards)
            self._trace.add(dims, None, "", None)
            unsplit = SampleCheck(self._call.run, whole)
            return Verdict(plan, unsplit, printed=whole.printed, trace=self._trace)
        self.restore()
        why = result if isinstance(result, str) else str(guards)
        self._trace.add(dims, None, why, self._comparison.difference)
        return Verdict(None, why=why)

    def _likeliest(self, reasons: Sequence[str]) -> str:
        """Return the reason that is the user's, of the reasons for which the ways have failed."""
        if reasons and reasons[-1] in _ENDS_CHECK:
            return reasons[-1]
        tried = [*zip(reasons, self._ways, strict=True)]
        of_list = next((why for why, way in tried if LIST in way.values()), None)
        if of_list is not None:
            return f"its samples are in a list, and {of_list}"
        if not reasons or are_few(sizes_of(self._call.arguments), self._world.place.size):
            return FEWER
        # Of the way that splits most inputs, and of these the first: other ways may split time.
        return max(tried, key=lambda reason_and_way: len(reason_and_way[1]))[0]

    def _uses_of_inputs(self) -> InputUses:
        """Return the uses of the inputs as positions, from the call itself, whose values are in range."""
        integers = [path for path, tensor in self._call.arguments.tensors() if is_integer(tensor)]
        if not integers:
            return InputUses()
        trace = PositionTrace()
        with changing_no_files(), disturbance.copied_parameters(self._call.module):
            _, failure = self._attempted(partial(self._call.run.unsplit, self._call.arguments, trace=trace))
        return InputUses(unchecked=frozenset(integers)) if failure else trace.uses

    def _attempted(self, run: Callable[..., T]) -> tuple[T | None, str]:
        """Return the result of an unsplit call of the module or its error, and restore the module."""
        result, failure = None, ""
        # Without a graph first, to save memory; a model may need one to differentiate within its forward.
        for grad in (False, True)[: 1 + torch.is_grad_enabled()]:
            result, failure = self._comparison.attempted(partial(run, grad=grad))
            self.restore()
            if not failure:
                break
        return result, failure

    def _computed_whole(self) -> UnsplitCall | str:
        """Return the results of the unsplit call, or the reason why it is not split."""
        whole, failure = self._attempted(partial(self._call.run.recorded, self._call.arguments))
        if failure:
            return failure
        unlike = COMPILED_DRAWS if is_compiled(self._call.module) else UNLIKE_DRAWS
        why = self._reason_on_any_rank(self._call.run, whole, unlike if whole is None else whole.writes)
        return why or whole or unlike

    def _reason_on_any_rank(self, run: ModuleRun, whole: UnsplitCall | None, why: str) -> str:
        """Return why an unsplit call is not split, on any rank; empty if it may be split.

        Its results decide which collectives follow, and a mirror may not be as the module in all of them: a
        tensor that the module holds in another's memory is one of its own there.
        """
        if not self._comparison.agreed(not why):
            return next(filter(None, self._world.all_gather_objects(why)))
        assert whole is not None
        shapes = [tuple(output.shape) for output in whole.outputs.values()]
        decisions = not run.drawn.same(whole.drawn), bool(whole.reads.values), shapes
        is_same = self._comparison.are_same(decisions)
        return "" if is_same else OTHER_ON_WORKERS

    def _plan(
        self, dims: Dims, whole: UnsplitCall, result: SplitResult, guards: Mapping[Site, Any]
    ) -> SplitPlan:
        outputs = dict(leaves(result.outputs))
        reduced = [
            path for path, gathering in result.gatherings.items() if isinstance(gathering, ReducedOutput)
        ]
        watches = bool(reduced) and is_compiled(self._call.module)  # of which there is no graph to read
        watches |= any(path[0] != 0 or outputs[path[1:]].grad_fn is None for path in reduced)
        rewrites = not self._comparison.agreed(not whole.rewrites)  # calls then compare what they write
        return SplitPlan(
            *(dims, result.gatherings, whole.sides, result.draws, watches, guards, result.has_views),
            rewrites=rewrites,
            reads_late=self._reads_late,
            operations=result.operations,
            watches_operations=self._comparison.reads.are_of_others,
        )

    def _possible_ways(self, arguments: CallArguments) -> Iterator[Dims]:
        """Yield the way that the script declares, or else all ways that the shapes allow."""
        size = self._world.place.size
        declared = self._declared
        if declared is None:
            yield from candidates(arguments, size)
        elif (arguments.total(declared) or 0) >= size:
            yield declared

    def _refuted(self, dims: Dims) -> Generator[None, None, str]:
        """Return how a way fails on disturbed calls, and yield after each; the first that runs decides."""
        self._comparison.forget()
        self._call.weights.forget()
        total = self._total(dims)
        failure = ""
        for group in disturbance.disturbances(self._world.place.size, total, is_large=self._is_large):
            for place, how in enumerate(group):
                began = monotonic()
                difference = self._disturbed(dims, how)
                if isinstance(difference, str):
                    self._note(dims, how, difference)
                    took_s = monotonic() - began
                    yield
                    if difference:
                        return difference
                    why = yield from self._refuted_again(dims, how, took_s)
                    return why
                failure = failure or difference.why
                yield
                if 0 < place < len(group) - 2 and isinstance(self._disturbed(dims, group[-1]), _Failed):
                    break  # shapes do not fit, whatever the values are
        return failure if failure == INDEPENDENT else f"{_UNCHECKED}: {failure}"

    def _refuted_again(
        self, dims: Dims, how: disturbance.Disturbance, first_s: float
    ) -> Generator[None, None, str]:
        """Return how a way fails on further disturbed calls, and yield after each; empty if it passes.

        One batch may agree by chance; a slice may have ignored samples only; a counter may act later; what
        dropout has removed may hide a difference. What depends on the place of a sample may have a period, of
        which a slice holds a multiple: slices of another size do not. A call that fails unsplit is repeated
        with as many samples as the actual call, and skipped if that fails too. The first call took `first_s`
        seconds.
        """
        more = None if how.samples is None else how.samples + how.size
        further = [replace(how, samples=more, seed=3, lopsided=True)]
        if how.samples is not None and not self._is_large:
            further.append(replace(how, samples=2 * how.samples + 1, seed=2))
        empties = disturbance.emptying(self._call.arguments, dims, self._uses)
        further += [replace(how, empties=empty) for empty in empties]
        further += [replace(how, scale=scale) for scale in disturbance.SCALES]
        if self._counts:
            further += [replace(how, counters=number) for number in disturbance.COUNTERS]
        self._pace.expect(first_s * len(further))
        for number, change in enumerate(further, 1):
            disturbed = replace(change, gradients=False, skipped_draws=number)
            difference = self._disturbed(dims, disturbed)
            if difference and self._comparison.lacks_gathering and torch.is_grad_enabled():
                # The graph shows weights that the operations alone do not show.
                difference = self._disturbed(dims, replace(disturbed, gradients=True))
            if isinstance(difference, _Failed) and disturbed.samples is not None:
                difference = self._disturbed(dims, replace(disturbed, samples=None))
            if difference and isinstance(difference, str):
                self._note(dims, disturbed, difference)
                return difference
            yield
        return ""

    def _total(self, dims: Dims) -> int:
        """Return the number of samples of the call."""
        total = self._call.arguments.total(dims)
        assert total is not None
        return total

    def _note(self, dims: Dims, how: disturbance.Disturbance, why: str) -> None:
        """Keep the first difference of a way."""
        if why:
            self._trace.add(dims, how, why, self._comparison.difference)

    def _disturbed(self, dims: Dims, how: disturbance.Disturbance) -> "str | _Failed":
        """Check a way on a disturbed call; restore the module and the generators."""
        self._comparison.lacks_gathering = False
        with self._restoring(), ExitStack() as stack:
            stack.enter_context(untuned_kernels(self._world.device))

            def disturbed() -> CallArguments:  # double precision may exceed the memory
                stack.enter_context(self._call.weights.applied(how))
                arguments = disturbance.disturbed_inputs(
                    self._call.arguments, dims, self._total(dims), how, self._uses
                )
                if how.counters is not None:
                    tensors = self._call.run.before.tensors(self._counting_tensors)
                    disturbance.set_counters(self._call.module, self._counters, tensors, how.counters)
                return arguments

            arguments, failure = self._comparison.attempted(disturbed)
            if self._draws:  # equally on all ranks
                _skip_draws(how.skipped_draws, self._world.device)
            return _Failed(failure) if arguments is None else self._compared(arguments, dims, how)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        """Restore the module and the generators after a block, unless the device has failed."""
        try:
            yield
        except DeviceFailed:
            raise
        except BaseException:
            self.restore()
            raise
        self.restore()

    def _compared(
        self, arguments: CallArguments, dims: Dims, how: disturbance.Disturbance
    ) -> "str | _Failed":
        run = ModuleRun(self._forward, self._call.module, self._world.device)
        run.dims = dims
        precise = disturbance.DoublePrecision() if how.double else CheckedPositions()
        grad = torch.is_grad_enabled() and how.gradients
        failure, whole, expected = "", None, None
        try:
            with eagerly(self._call.module, when=True), changing_no_files():
                whole = (
                    run.unsplit(arguments, grad=grad, records=True, precise=precise)
                    if self._draws
                    else run.recorded(arguments, grad=grad, precise=precise)
                )
                if grad and whole is not None:
                    with precise, quiet():
                        expected = self._expected(whole.tensors, arguments, run, how)
            failure = UNLIKE_DRAWS if whole is None else whole.flaw
            self._has_beside = self._has_beside or run.has_beside
        except (WritesFileError, TrainsError) as error:
            failure = WRITES_FILES if isinstance(error, WritesFileError) else TRAINS
        except Exception as error:  # noqa: BLE001 - the model may fail on these samples; others are tried
            self._comparison.end_if_device_failed(error)
            failure = in_one_line(error)
        if whole is None or whole.writes:
            self._call.weights.forget()
        if not self._comparison.agreed(not failure):
            for final in WRITES_FILES, TRAINS:
                if not self._comparison.agreed(failure != final):
                    return final
            elsewhere = next(filter(None, self._world.all_gather_objects(failure)), "")
            return _Failed(failure or f"{elsewhere} on another worker")
        assert whole is not None
        self._draws = not run.drawn.same(whole.drawn)
        self._counters = counters(run.left, whole.left)
        self._counting_tensors = run.before.counting_tensors()
        if why := self._reason_on_any_rank(run, whole, whole.writes):
            return why
        self._counts = not self._comparison.agreed(not (self._counters or self._counting_tensors))
        run.restore()
        why = self._other_split(run, arguments, dims, whole, expected, precise)
        return _Failed(why) if why == INDEPENDENT else why  # by a loss of labels that have been changed, too

    def _other_split(
        self,
        run: ModuleRun,
        arguments: CallArguments,
        dims: Dims,
        whole: UnsplitCall,
        expected: "_Expected | None",
        precise: CheckedPositions,
    ) -> str:
        """Return how a split call differs from the unsplit one; empty if they are equal."""
        grad = expected is not None
        result = self._comparison.split(run, arguments, dims, whole, grad=grad, precise=precise)
        if isinstance(result, str):
            return result
        if expected is None:
            return ""
        recomputed = recomputations.number
        with precise, quiet():
            why = self._other_gradients(result, arguments, whole, expected)
        self._reads_late |= recomputations.number > recomputed
        left = changed(run.left, run.state())
        name = expected.written or kept_of_slice(expected.kept, left, arguments.total(dims) or 0)
        if not why and not self._comparison.agreed(name is None):
            return f"its backward keeps a number of its slice ({name or 'on another worker'})"
        return why

    def _expected(
        self,
        tensors: Mapping[Path, Tensor],
        arguments: CallArguments,
        run: ModuleRun,
        how: disturbance.Disturbance,
    ) -> "_Expected":
        """Return the gradients of the unsplit call."""
        nodes, held = python_nodes(tensors.values()), run.before.held()
        self._reads_late = any(map(keeps_objects, nodes))
        factors = _FACTORS[: None if nodes else 1] if how.double else (1.0,)
        leaf = [tensor for named in self._leaf(arguments) for tensor in named.values()]
        of_factors: list[list[Tensor | None]] = []
        try:
            of_factors.extend(
                [None if each is None else _dense(each) for each in gradients]
                for gradients in self._gradients(tensors, leaf, factors)
            )
        except Exception:  # a backward of the script may release what it needs, and runs only once
            if not of_factors:
                raise
        kept = changed(run.left, run.state())
        return _Expected(factors[: len(of_factors)], of_factors, run.before.changed_since(held), kept)

    def _gradients(
        self, tensors: Mapping[Path, Tensor], leaf: Sequence[Tensor], factors: Sequence[float]
    ) -> Iterator[Sequence[Tensor | None]]:
        """Yield the gradients of a weighted sum of all outputs times each factor, for some leaves."""
        generator = torch.Generator().manual_seed(3)
        value = torch.zeros((), dtype=torch.float64, device=self._world.device)
        for _, tensor in sorted(tensors.items(), key=lambda item: repr(item[0])):
            weights = 0.5 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu")
            if tensor.requires_grad and tensor.is_floating_point():
                value = value + (tensor * weights.to(tensor.device)).sum()
        for number, factor in enumerate(factors, 1):
            if not value.requires_grad or not leaf:
                yield [None] * len(leaf)
                continue
            with unaveraged([value]):
                of_value = [torch.full_like(value, factor)]
                gradients = gradients_of([value], leaf, of_value, retain=number < len(factors))
            yield gradients

    def _leaf(self, arguments: CallArguments) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters and the inputs that get gradients, by names for messages."""
        parameters = module_parts.named_parameters(self._call.module)
        inputs = ((f"its input{text(path[1:])}", tensor) for path, tensor in arguments.tensors())
        of_parameters, of_inputs = (
            {name: tensor for name, tensor in named if tensor.requires_grad} for named in (parameters, inputs)
        )
        return of_parameters, of_inputs

    def _other_gradients(
        self,
        result: SplitResult,
        arguments: CallArguments,
        unsplit: UnsplitCall,
        expected: "_Expected",
    ) -> str:
        """Return how the gradients of a split call differ; empty if they are equal.

        As in a training, those of parameters are summed by the same function.
        """
        value = dict(leaves(outcome(self._call.module, result.outputs, unsplit.sides)))
        of_parameters, of_inputs = self._leaf(arguments)
        leaf = [*of_parameters.values(), *of_inputs.values()]
        of_slice, failure = self._comparison.attempted(
            lambda: [*self._gradients(value, leaf, expected.factors)]
        )
        if of_slice is None:
            return failure
        names = [*of_parameters, *of_inputs]
        for of_factor, whole in zip(of_slice, expected.of_factors, strict=True):
            if why := self._other_of_factor(of_factor, whole, of_parameters, names, unsplit.precision):
                return why
        return ""

    def _other_of_factor(
        self,
        of_slice: Sequence[Tensor | None],
        expected: Sequence[Tensor | None],
        of_parameters: Mapping[str, Tensor],
        names: Sequence[str],
        precision: torch.dtype,
    ) -> str:
        """Return how the gradients of a split call differ for one factor; empty if they are equal."""
        weights = [*of_parameters.values()]
        pairs = zip(of_slice, expected, strict=True)
        if not self._comparison.agreed(all((part is None) == (whole is None) for part, whole in pairs)):
            return "its slices have gradients of other parameters"
        totals, failure = self._comparison.attempted(partial(self._sums, weights, of_slice[: len(weights)]))
        if totals is None:
            return failure
        if not self._world.place.is_main:  # which has no sums
            totals = [*expected[: len(weights)]]
        both = (*totals, *of_slice[len(weights) :])
        split = [None if gradient is None else _dense(gradient) for gradient in both]
        why = self._first_other(names, split, expected, precision)
        if self._comparison.agreed(not why):
            return ""
        return why or "its gradients differ on another worker"

    def _sums(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the sums of gradients, in messages that need little memory beside the check's."""
        totals: list[Tensor | None] = []
        for group in groups(weights):
            of_group = gradients[len(totals) : len(totals) + len(group)]
            sparse = sparse_places(self._call.module, group)
            totals += sums(self._world, group, of_group, sparse)
        return totals

    def _first_other(
        self,
        names: Sequence[str],
        gradients: Sequence[Tensor | None],
        expected: Sequence[Tensor | None],
        precision: torch.dtype,
    ) -> str:
        """Return how the first of the gradients that differ on this rank does; empty if all are equal."""
        scale = largest(*(gradient for gradient in expected if gradient is not None))
        for name, gradient, whole in zip(names, gradients, expected, strict=True):
            if whole is None or (
                gradient is not None and close(gradient, whole, scale=scale, precision=precision)
            ):
                continue
            if gradient is None:
                return f"the gradient of {name} is missing"
            self._comparison.difference = difference(gradient, whole, scale=scale, precision=precision)
            ratio = multiple(gradient, whole, scale=scale, precision=precision)
            if ratio is not None:
                return f"the gradient of {name} is {ratio:.6g} times that of the whole batch"
            return f"the gradient of {name} is not the sum of those of slices: its backward compares samples"
        return ""


def _dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _skip_draws(count: int, device: torch.device) -> None:
    """Draw from each generator, after which a call draws other numbers, and may take another branch."""
    torch.rand(count, device="cpu")
    torch.rand(count, device=device)
    np.random.random_sample(count)
    for _ in range(count):
        random.random()


@dataclass(frozen=True, slots=True)
class _Expected:
    """The gradients of an unsplit call, and what its backward has changed."""

    factors: Sequence[float]
    of_factors: Sequence[Sequence[Tensor | None]]
    """The gradients for each factor of those of the outputs: of parameters, and then of inputs."""
    written: str | None
    """A tensor of the module that the backward has written to or assigned; None for none."""
    kept: Attributes
    """The attributes beside tensors that the call and its backward have changed."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """The error of an unsplit call, or why it shows nothing about the way."""

    why: str


@contextmanager
def untuned_kernels(device: torch.device) -> Iterator[None]:
    """Let cuDNN try no algorithms for the shapes of a block, which a script computes only once."""
    is_tuned = device.type == "cuda" and torch.backends.cudnn.benchmark
    if is_tuned:
        torch._C._set_cudnn_benchmark(False)  # noqa: FBT003, SLF001 - `flags` would set all others, too
    try:
        yield
    finally:
        if is_tuned:
            torch._C._set_cudnn_benchmark(True)  # noqa: FBT003, SLF001
