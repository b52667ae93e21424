"""Finds the module whose parameter has another gradient, if not all parameters have."""

from collections.abc import Sequence

import numpy as np

from samestep.studies.verify.case import Comparison
from samestep.studies.verify.compare import allowed_deviation, rounding_of
from samestep.studies.verify.modules.first_difference import ModuleDifference
from samestep.studies.verify.modules.module_record import Call, ModuleRecord
from samestep.studies.verify.run_record import Vector, relative
from samestep.studies.verify.tensor_summary import BUCKETS

_EQUAL = 1e-6  # largest relative difference between ranks that the rounding of a collective explains


def first_between_ranks(comparison: Comparison, step: int, record: ModuleRecord) -> ModuleDifference | None:
    """Return the first parameter whose gradient differs between the ranks, in the order of backward."""
    first, *others = [_gradients(one.gradient) for one in comparison.run.of_ranks(step)]
    return _first_of(comparison, step, record, (first, others), [_EQUAL] * len(first))


def differ_between_ranks(comparison: Comparison, step: int) -> bool:
    """Return whether the gradients of some parameters differ between the ranks, but not of all."""
    first, *others = [_gradients(one.gradient) for one in comparison.run.of_ranks(step)]
    if any(len(other) != len(first) for other in others):
        return False
    equal = [one for k, one in enumerate(first) if all(relative(o[k], one) <= _EQUAL for o in others)]
    return any(one.any() for one in equal)


def first_from_reference(comparison: Comparison, step: int, record: ModuleRecord) -> ModuleDifference | None:
    """Return the first parameter whose gradient differs from that on one worker, in the order of backward."""
    usual, control, here = (
        _gradients(run.at(step).gradient)
        for run in (comparison.reference, comparison.control, comparison.run)
    )
    floor = rounding_of(comparison.reference.facts.epsilon)
    allowed = [allowed_deviation(relative(a, b), floor) for a, b in zip(control, usual, strict=False)]
    return _first_of(comparison, step, record, (usual, [here]), allowed)


def _first_of(
    comparison: Comparison,
    step: int,
    record: ModuleRecord,
    gradients: tuple[list[Vector], list[list[Vector]]],
    allowed: Sequence[float],
) -> ModuleDifference | None:
    usual, compared = gradients
    reference = comparison.reference
    held = dict(enumerate(reference.facts.parameters)).get(reference.at(step).optimizer, [])
    if {len(one) for one in (usual, allowed, *compared)} != {len(held)}:
        return None
    values = [max(relative(one[k], usual[k]) for one in compared) for k in range(len(held))]
    other = [k for k, value in enumerate(values) if value > allowed[k]]
    if not other or len(other) == sum(bool(one.any()) for one in usual):
        return None
    last = other[-1]
    model, _, name = held[last].name.partition(": ")
    call = _owner(record, model, name)
    if call is None:
        return None
    return ModuleDifference(call, "backward", "parameter", values[last], allowed[last], parameter=name)


def _gradients(sketch: Sequence[float]) -> list[Vector]:
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
