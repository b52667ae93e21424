"""Finds the first module whose values, or whose parameters' gradients, differ, and adds it to a finding.

A tensor of the run on one worker is compared with the tensors of several ranks, which hold shards of it. The
shards are joined in one of three ways, by their shapes:

* the rows of all ranks are those of one worker: they are aligned by the samples that the ranks got, or, if
  samples cannot be distinguished, each row is compared with the nearest one;
* each rank has as many rows as one worker: each rank's tensor, their mean or their sum is that of one worker;
* otherwise they cannot be compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from samestep.verify.compare import Comparison, allowed_deviation, rounding_of
from samestep.verify.run_record import EQUAL, Vector, differ, relative, same_samples
from samestep.verify.tensor_summary import BUCKETS, NUMBERS, PROJECTIONS, RowSummary
from samestep.verify.trace import Call, Key, ModuleRecord, Value
from samestep.verify.verdict import Finding

Matrix = npt.NDArray[np.float64]
Order = npt.NDArray[np.intp]
_MOST_ROWS = 1024  # most rows that are compared with each other: a guess, 8 MiB of distances
_APART = 10.0
"""Smallest distance of two keys, as a multiple of the rounding of a key, at which they have an order: a
guess."""
Phase: TypeAlias = Literal["forward", "backward"]
Part: TypeAlias = Literal[
    "parameters", "input", "output", "input of part", "loss", "gradient", "gradient of part", "parameter"
]
"""The kinds of the first difference: the parameters of a top-level module, between the ranks; the input of a
top-level module; the output of a module; what a module gives to one of its parts; the gradient of the output
of a top-level module, which the loss gives; the gradient of a module's input; the gradient that a module
gives to one of its parts; the gradient of a parameter."""
_OF_VALUES = ("gradient", "gradient-norm", "gradient-scale", "loss", "update", "parameters")
_BETWEEN_RANKS = ("never-averaged", "accumulation-not-averaged")
_PARTS: dict[Part, str] = {
    "parameters": "its parameters",
    "input": "its input",
    "output": "its output",
    "input of part": "the input that it gives to a part",
    "loss": "the gradient that the loss gives to its output",
    "gradient": "the gradient of its input",
    "gradient of part": "the gradient that it gives to the output of a part",
}


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor of one rank, with the keys of the samples it was computed from."""

    summary: RowSummary
    samples: Sequence[float]

    def rows(self, dim: int) -> Matrix:
        """Return the numbers of its rows."""
        rows = self.summary.rows[dim]
        return np.array(rows, dtype=np.float64).reshape(len(rows), NUMBERS)  # also of an empty tensor

    def other_sizes(self, dim: int) -> list[int]:
        """Return the sizes of all other dimensions."""
        return [size for k, size in enumerate(self.summary.shape) if k != dim]


def forward_distance(whole: Shard, shards: Sequence[Shard]) -> float | None:
    """Return how far the shards of a tensor are from that of one worker; None if that is not known."""
    if (dim := _sharded(whole, shards)) is not None:
        return _of_rows(whole, shards, dim, np.ones(len(shards)))
    if not _have_shape(whole, shards):
        return None
    return _of_equals(whole, shards, [_shares_of_samples(shards)])


def gradient_distance(whole: Shard, shards: Sequence[Shard], scales: Sequence[Vector]) -> float | None:
    """Return how far the gradients of shards are from that of one worker; None if that is not known.

    Args:
        whole: the gradient on one worker.
        shards: the gradients of the ranks.
        scales: possible factors by which each rank's gradients are larger than on one worker.
    """
    if (dim := _sharded(whole, shards)) is not None:
        distances = [_of_rows(whole, shards, dim, scale) for scale in scales]
        return min((distance for distance in distances if distance is not None), default=None)
    if not _have_shape(whole, shards):
        return None
    return _of_equals(whole, shards, [1 / scale for scale in scales])


def scales_of(whole: Shard, shards: Sequence[Shard]) -> Vector | None:
    """Return the factor by which each rank's gradients are larger than on one worker; None if not known.

    The mean over a shard of one N-th of the batch gives each sample N times the weight, which averaging over
    the ranks takes back. A sum does not; and shards of unequal sizes have one factor, or one each.
    """
    if (dim := _sharded(whole, shards)) is None:
        return None
    count = len(shards)
    candidates = [np.ones(count), np.full(count, float(count)), *_fitted(whole, shards, dim)]
    distances = [_of_rows(whole, shards, dim, scale) for scale in candidates]
    known = [(distance, number) for number, distance in enumerate(distances) if distance is not None]
    return candidates[min(known)[1]] if known else None


def _fitted(whole: Shard, shards: Sequence[Shard], dim: int) -> list[Vector]:
    """Return the factors that fit best: one for all ranks, or one over the rank's number of samples."""
    order = _order(whole, shards, dim)
    if order is None:
        return []
    fits = []
    for weights in (np.ones(len(shards)), 1 / _shares_of_samples(shards)):
        usual, here = _in_order(whole.rows(dim), _joined(shards, dim, weights), order)
        size = float((usual**2).sum())
        if size and (factor := float((here * usual).sum()) / size) > 0:
            fits.append(weights * factor)
    return fits


def _sharded(whole: Shard, shards: Sequence[Shard]) -> int | None:
    """Return the dimension along which the shards have the rows of one worker between them."""
    for dim, rows in whole.summary.rows.items():
        if (
            len(whole.summary.shape) > dim
            and all(dim in shard.summary.rows for shard in shards)
            and all(shard.other_sizes(dim) == whole.other_sizes(dim) for shard in shards)
            and sum(len(shard.summary.rows[dim]) for shard in shards) == len(rows)
        ):
            return dim
    return None


def _have_shape(whole: Shard, shards: Sequence[Shard]) -> bool:
    return all(list(shard.summary.shape) == list(whole.summary.shape) for shard in shards)


def _joined(shards: Sequence[Shard], dim: int, scale: Vector) -> Matrix:
    """Return the rows of all ranks, each rank's divided by its scale."""
    return np.concatenate([shard.rows(dim) / by for shard, by in zip(shards, scale, strict=True)])


def _of_rows(whole: Shard, shards: Sequence[Shard], dim: int, scale: Vector) -> float | None:
    """Return the distance of the rows, each rank's divided by its scale."""
    usual, here = whole.rows(dim), _joined(shards, dim, scale)
    order = _order(whole, shards, dim)
    if order is None:
        return _of_nearest(usual, here)
    distance = _of_aligned(*_in_order(usual, here, order), slice(PROJECTIONS))
    if whole.summary.shape[1:] != [len(whole.samples)]:
        return distance
    # The columns are samples too, which several ranks gather in another order.
    return min(distance, _of_aligned(*_in_order(usual, here, order), slice(PROJECTIONS, None)))


def _of_aligned(usual: Matrix, here: Matrix, numbers: slice) -> float:
    return relative(here[..., numbers].ravel(), usual[..., numbers].ravel())


def _order(whole: Shard, shards: Sequence[Shard], dim: int) -> tuple[Order, Order] | None:
    """Return the order of the samples on one worker and over all ranks; None if they are not distinct."""
    count = len(whole.samples)
    if not count or any(not shard.samples for shard in shards):
        return None
    per_sample, rest = divmod(len(whole.summary.rows[dim]), count)
    if rest or any(len(shard.summary.rows[dim]) != per_sample * len(shard.samples) for shard in shards):
        return None
    usual = np.array(whole.samples)
    here = np.array([key for shard in shards for key in shard.samples])
    orders = np.argsort(usual, kind="stable"), np.argsort(here, kind="stable")
    usual, here = usual[orders[0]], here[orders[1]]
    if not same_samples(here, usual):
        return None
    rounding = max(float(np.abs(usual - here).max()), np.finfo(np.float64).eps * float(np.abs(usual).max()))
    return orders if count == 1 or float(np.diff(usual).min()) > _APART * rounding else None


def _in_order(usual: Matrix, here: Matrix, order: tuple[Order, Order]) -> tuple[Matrix, Matrix]:
    """Return the rows of each sample, in the order of the samples."""
    first, second = (
        rows.reshape(len(by), -1, rows.shape[1])[by] for rows, by in zip((usual, here), order, strict=True)
    )
    return first, second


def _of_nearest(usual: Matrix, here: Matrix) -> float | None:
    """Return the distance of each row to the nearest of the others; None for too many rows, or none."""
    if not 0 < max(len(usual), len(here)) <= _MOST_ROWS:
        return None
    usual, here = usual[:, :PROJECTIONS], here[:, :PROJECTIONS]
    squares = ((usual[:, None] - here[None]) ** 2).sum(-1)
    size = float((usual**2).sum())
    farthest = max(float(squares.min(0).sum()), float(squares.min(1).sum()))
    return float(np.sqrt(farthest / size)) if size else (0.0 if not farthest else float("inf"))


def _of_equals(whole: Shard, shards: Sequence[Shard], weights: Sequence[Vector]) -> float:
    """Return the least distance of each rank's tensor, of their mean, their sum and of weighted sums."""
    usual = whole.rows(0)[:, :PROJECTIONS]
    all_rows = np.stack([shard.rows(0)[:, :PROJECTIONS] for shard in shards])
    each = max(relative(rows.ravel(), usual.ravel()) for rows in all_rows)
    gathered = [each] if len(usual) == 1 else [_of_nearest(usual, rows) for rows in all_rows]
    nearest = max(float("inf") if far is None else far for far in gathered)
    count = len(shards)
    sums = [
        relative(np.tensordot(by, all_rows, 1).ravel(), usual.ravel())
        for by in (np.ones(count), np.full(count, 1 / count), *weights)
    ]
    return min(each, nearest, *sums)


def _shares_of_samples(shards: Sequence[Shard]) -> Vector:
    """Return each rank's share of the samples; equal shares if they are not known."""
    counts = np.array([float(len(shard.samples)) for shard in shards])
    return counts / counts.sum() if counts.all() else np.full(len(shards), 1 / len(shards))


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """The first difference in a module."""

    call: Call  # the call of the module
    phase: Phase  # whether it differs in forward or in backward
    part: Part  # what differs
    value: float  # the relative deviation
    allowed: float  # the deviation that rounding explains
    parameter: str = ""  # name of the parameter, if the gradient of one differs
    ratio: float | None = None  # of the parameter's gradient to that of one worker; None if it is no multiple

    @property
    def is_outside(self) -> bool:
        """Whether the difference arises outside of all modules."""
        return self.part in ("input", "loss")


@dataclass(frozen=True)
class ModuleRecords:
    """The records of one step, and the machine epsilon of the computation."""

    reference: ModuleRecord  # the record of one worker
    control: ModuleRecord  # the same, disturbed by rounding
    ranks: Sequence[ModuleRecord]  # the record of each rank
    epsilon: float  # the machine epsilon
    are_replicas: bool = True  # whether the ranks begin the step with equal parameters

    def first_difference(self) -> ModuleDifference | None:
        """Return the first module whose input, output or gradient differs, in the order of execution."""
        return next(chain(self._parameters_of_ranks(), self._forward(), self._backward()), None)

    @property
    def _sides(self) -> tuple[Sequence[ModuleRecord], Sequence[ModuleRecord]]:
        """The records that are compared with the reference: those of the ranks, and of the control."""
        return self.ranks, [self.control]

    @property
    def _first_rank(self) -> ModuleRecord:
        """The record in which a difference is attributed: a script can do other things on one worker."""
        return self.ranks[0]

    def _parameters_of_ranks(self) -> Iterator[ModuleDifference]:
        """Yield the top-level calls whose parameters differ between the ranks, if all ranks make the call."""
        for calls in zip(*(record.calls for record in self.ranks if self.are_replicas), strict=False):
            if len({(call.name, call.kind, call.number, len(call.parameters)) for call in calls}) > 1:
                return
            first, *vectors = (np.array(call.parameters) for call in calls)
            value = max((relative(vector, first) for vector in vectors), default=0.0)
            if value > EQUAL:
                yield ModuleDifference(calls[0], "forward", "parameters", value, EQUAL)

    def _forward(self) -> Iterator[ModuleDifference]:
        for key in self.reference.by_key:
            measured = self._measured(self._forward_distance(key, side) for side in self._sides)
            if measured is not None:
                yield self._of_value(self._first_rank.by_key[key], *measured)

    def _backward(self) -> Iterator[ModuleDifference]:
        numbers = {number for _, number in self.reference.gradients_by_key}
        scales = {number: [self._scales(number, side) for side in self._sides] for number in numbers}
        for key, number in self.reference.gradients_by_key:
            measured = self._measured(
                self._gradient_distance(key, number, side, scale)
                for side, scale in zip(self._sides, scales[number], strict=True)
            )
            if measured is not None:
                yield self._of_gradient(self._first_rank.by_key[key], *measured)

    def _measured(self, distances: Iterator[float | None]) -> tuple[float, float] | None:
        """Return the deviation of the ranks and the allowed one, if it is larger than that.

        Args:
            distances: that of the ranks, and that of the control, which is computed only if needed.
        """
        value = next(distances)
        if value is None:
            return None
        floor = rounding_of(self.epsilon)
        if value <= floor:
            return None
        allowed = allowed_deviation(next(distances) or 0.0, floor)
        return (value, allowed) if value > allowed else None

    def _forward_distance(self, key: Key, records: Sequence[ModuleRecord]) -> float | None:
        shards = [_shard(record, record.by_key[key]) for record in records if key in record.by_key]
        if len(shards) < len(records):  # a rank has not called the module
            return None
        first = key._replace(leaf=0)
        if any(record.leaves[first] != self.reference.leaves[first] for record in records):
            return None  # a tensor for each sample: others in each shard
        return forward_distance(_shard(self.reference, self.reference.by_key[key]), shards)

    def _gradient_distance(
        self, key: Key, backward: int, records: Sequence[ModuleRecord], scales: Sequence[Vector]
    ) -> float | None:
        pair = _gradients_of(self.reference, records, key, backward)
        return None if pair is None else gradient_distance(*pair, scales)

    def _scales(self, backward: int, records: Sequence[ModuleRecord]) -> Sequence[Vector]:
        """Return the factor of each rank's gradients that the loss gives, or the usual ones if not known.

        It is that of the first gradient with a row for each sample, in the order of execution.
        """
        for key, number in self.reference.gradients_by_key:
            pair = _gradients_of(self.reference, records, key, number) if number == backward else None
            if pair is not None and (scale := scales_of(*pair)) is not None:
                return [scale]
        count = len(records)
        return [np.ones(count), np.full(count, float(count))]

    def _of_value(self, value: Value, deviation: float, allowed: float) -> ModuleDifference:
        """Return the difference of an input, which the calling module has computed, or of an output."""
        part: Part
        call, part = self._first_rank.calls[value.call], value.role
        if part == "input" and call.parent is not None:
            call, part = self._first_rank.calls[call.parent], "input of part"
        return ModuleDifference(call, "forward", part, deviation, allowed)

    def _of_gradient(self, value: Value, deviation: float, allowed: float) -> ModuleDifference:
        """Return the difference of a gradient, which the module that received the tensor has computed."""
        receivers = [
            self._first_rank.calls[alias.call] for alias in self._same_tensor(value) if alias.role == "input"
        ]
        part: Part = "gradient"
        module_call = self._common([call for call in receivers if call.index in self._differentiated])
        if module_call is None:
            part = "loss"
            module_call = self._first_rank.calls[min(alias.call for alias in self._same_tensor(value))]
            if module_call.parent is not None:
                part = "gradient of part"
                module_call = self._first_rank.calls[module_call.parent]  # its own code has used the tensor
        return ModuleDifference(module_call, "backward", part, deviation, allowed)

    def _same_tensor(self, value: Value) -> list[Value]:
        """Return all inputs and outputs that are one tensor."""
        return [candidate for candidate in self._first_rank.values if candidate.tensor == value.tensor]

    @cached_property
    def _differentiated(self) -> set[int]:
        """Calls with an output that has a gradient."""
        with_gradient = {gradient.tensor for gradient in self._first_rank.gradients}
        return {
            value.call
            for value in self._first_rank.values
            if value.role == "output" and value.tensor in with_gradient
        }

    def _path(self, call: int) -> list[int]:
        """Return the indices of the calls around a call, from the outside in, and of the call itself."""
        parent = self._first_rank.calls[call].parent
        return [call] if parent is None else [*self._path(parent), call]

    def _common(self, calls: Sequence[Call]) -> Call | None:
        """Return the innermost of nested calls; of calls beside each other, the one around all of them."""
        paths = [self._path(call.index) for call in calls]
        paths = [path for path in paths if not any(path == longer[: len(path)] != longer for longer in paths)]
        if not paths:
            return None
        shared = paths[-1]  # backward executes the last one first
        for path in paths:
            if common := [call for call, parallel in zip(shared, path, strict=False) if call == parallel]:
                shared = common
        return self._first_rank.calls[shared[-1]]


def _shard(record: ModuleRecord, value: Value) -> Shard:
    return Shard(value.summary, record.samples(value))


def _gradients_of(
    reference: ModuleRecord, records: Sequence[ModuleRecord], key: Key, backward: int
) -> tuple[Shard, list[Shard]] | None:
    """Return the gradient of a value on one worker and on all ranks; None if a rank has none."""
    shards = []
    for record in (reference, *records):
        gradient = record.gradients_by_key.get((key, backward))
        if gradient is None:
            return None
        shards.append(Shard(gradient.summary, record.samples(record.by_key[key])))
    return shards[0], shards[1:]


def _differ_between_ranks(comparison: Comparison, step: int) -> bool:
    """Return whether the gradients of some parameters differ between the ranks, but not of all."""
    first, *gradients = [_of_parameters(rank_step.gradient) for rank_step in comparison.run.of_ranks(step)]
    if any(len(gradient) != len(first) for gradient in gradients):
        return False
    are_equal = (
        all(relative(gradient[k], vector) <= EQUAL for gradient in gradients) and vector.any()
        for k, vector in enumerate(first)
    )
    return any(are_equal)


def _first_from_reference(comparison: Comparison, step: int, record: ModuleRecord) -> ModuleDifference | None:
    """Return the first parameter whose gradient differs from that on one worker, in the order of backward."""
    usual, control, here = (
        _of_parameters(run.at(step).gradient)
        for run in (comparison.reference, comparison.control, comparison.run)
    )
    floor = rounding_of(comparison.reference.facts.epsilon)
    allowed = [allowed_deviation(relative(a, b), floor) for a, b in zip(control, usual, strict=False)]
    return _first_parameter(comparison, step, record, (usual, [here]), allowed, has_reference=True)


def ratio_of(gradient: Vector, usual: Vector, allowed: float) -> float | None:
    """Return the factor that makes the usual gradient this one; None if there is none.

    Args:
        gradient: a sketch of the gradient, or the gradient itself.
        usual: that on one worker, of the same shape.
        allowed: the relative deviation that rounding explains.
    """
    squares = float((usual**2).sum())
    ratio = float((gradient * usual).sum()) / squares if squares else 0.0
    is_multiple = ratio and np.isfinite(ratio) and relative(gradient, ratio * usual) <= allowed
    return ratio if is_multiple else None


def _first_parameter(
    comparison: Comparison,
    step: int,
    record: ModuleRecord,
    gradients: tuple[list[Vector], list[list[Vector]]],
    allowed: Sequence[float],
    *,
    has_reference: bool,
) -> ModuleDifference | None:
    usual, compared = gradients
    reference = comparison.reference
    held = dict(enumerate(reference.facts.parameters)).get(reference.at(step).optimizer, [])
    if {len(vectors) for vectors in (usual, allowed, *compared)} != {len(held)}:
        return None
    values = [max(relative(vectors[k], usual[k]) for vectors in compared) for k in range(len(held))]
    differing = [k for k, value in enumerate(values) if value > allowed[k]]
    if not differing or len(differing) == sum(bool(vector.any()) for vector in usual):
        return None
    last = differing[-1]
    model, _, name = held[last].name.partition(": ")
    call = _owner(record, model, name)
    if call is None:
        return None
    ratio = ratio_of(compared[0][last], usual[last], allowed[last]) if has_reference else None
    return ModuleDifference(
        call, "backward", "parameter", values[last], allowed[last], parameter=name, ratio=ratio
    )


def _of_parameters(sketch: Sequence[float]) -> list[Vector]:
    return list(np.array(sketch, dtype=np.float64).reshape(-1, BUCKETS))


def _owner(record: ModuleRecord, model: str, parameter: str) -> Call | None:
    """Return the call of the module that has a parameter, or of the nearest module around it."""
    calls = {call.name: call for call in reversed(record.calls) if str(call.model) == model}
    name = parameter
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return calls[name]
    return None


def with_module(
    findings: Sequence[Finding], comparison: Comparison, recorded: Callable[[int], Comparison]
) -> list[Finding]:
    """Return findings, the gravest one with the module that differs first, if its cause is not known.

    Args:
        findings: the findings, the gravest first.
        comparison: the runs that were compared.
        recorded: runs the script again up to a step, and records the modules of that step.
    """
    if not findings or findings[0].step is None:
        return list(findings)
    first, *further = findings
    step, difference = findings[0].step, None
    if first.cause in _OF_VALUES:
        difference = _of_values(step, recorded(step))
    elif first.cause == "mean-of-means" and len(set(comparison.run.counts(step))) == 1:
        difference = _of_values(step, recorded(step))
        if difference is not None and difference.is_outside:  # the loop computes the loss, as the cause says
            difference = None
    elif first.cause in _BETWEEN_RANKS and _differ_between_ranks(comparison, step):
        difference = _between_ranks(step, recorded(step))
    return [first if difference is None else _named(first, difference), *further]


def _of_values(step: int, again: Comparison) -> ModuleDifference | None:
    reference = _reference(step, again)
    if reference is None:
        return None
    (control,), epsilon = again.control.modules, again.reference.facts.epsilon
    hold_parts = again.run.shares_batch or again.run.holds_parts
    are_replicas = not (hold_parts or differ(rank_step.before for rank_step in again.run.of_ranks(step)))
    records = ModuleRecords(reference, control, again.run.modules, epsilon, are_replicas=are_replicas)
    return records.first_difference() or _first_from_reference(again, step, reference)


def _between_ranks(step: int, again: Comparison) -> ModuleDifference | None:
    """Return the first parameter whose gradient differs between the ranks, in the order of backward."""
    reference = _reference(step, again)
    if reference is None:
        return None
    first, *gradients = [_of_parameters(rank_step.gradient) for rank_step in again.run.of_ranks(step)]
    return _first_parameter(
        again, step, reference, (first, gradients), [EQUAL] * len(first), has_reference=False
    )


def _reference(step: int, again: Comparison) -> ModuleRecord | None:
    """Return the record of the run on one worker; None if a run has not recorded the step."""
    runs = again.reference, again.control, again.run
    if any(run.failure is not None or run.steps <= step for run in runs):
        return None
    if not all(record.calls for run in runs for record in run.modules):
        return None
    return again.reference.modules[0]


def _named(finding: Finding, difference: ModuleDifference) -> Finding:
    call = difference.call
    if difference.part == "parameters":
        return _apart_within_step(finding, difference)
    name = call.name or call.kind
    part = f"the gradient of {difference.parameter}" if difference.parameter else _PARTS[difference.part]
    file, line = place = call.called if difference.is_outside else call.place
    times = "" if difference.ratio is None else f"is {difference.ratio:.6g} times that of one worker, "
    deviation = (
        f"{part} {times}deviates by {difference.value:.1e}, rounding explains {difference.allowed:.1e}"
    )
    if difference.is_outside:
        statement = f"No module differs before the call of {name} at {file}:{line}: {deviation}."
    else:
        statement = (
            f"The first module that differs is {name} ({call.kind}, {file}:{line}), in {difference.phase}: "
            f"{deviation}."
        )
    return replace(
        finding,
        message=f"{finding.message} {statement}",
        place=place,
        module="" if difference.is_outside else name,
        phase=difference.phase,
    )


def _apart_within_step(finding: Finding, difference: ModuleDifference) -> Finding:
    """Return the finding that a step begins with equal parameters on all ranks, and a call has others."""
    file, line = difference.call.called
    advice = (
        "Average over the ranks what changes them: a backward under no_sync(), for example, gives each rank "
        "its own gradient."
    )
    return replace(
        finding,
        cause="replicas-differ-in-step",
        message=f"the ranks' parameters differ by {difference.value:.1e} within step {finding.step}, where "
        f"{difference.call.kind} is called at {file}:{line}: each rank has changed them in its own way. "
        f"{advice}",
        advice=advice,
        place=difference.call.called,
        phase=difference.phase,
    )
