"""Finds the module whose parameter has another gradient, if not all parameters have."""

from collections.abc import Sequence

import numpy as np

from samestep.studies.verify.case import Comparison
from samestep.studies.verify.compare import allowed_deviation, rounding_of
from samestep.studies.verify.modules.first_difference import ModuleDifference
from samestep.studies.verify.modules.module_record import Call, ModuleRecord
from samestep.studies.verify.run_record import Vector, relative
from samestep.studies.verify.tensor_summary import BUCKETS

_EQUAL = 1e-6
"""Largest relative difference between ranks that the rounding of a collective explains."""


def parameter_difference(
    comparison: Comparison, step: int, record: ModuleRecord, *, between_ranks: bool
) -> ModuleDifference | None:
    """Return the first difference of a parameter's gradient, in the order of backward.

    Args:
        comparison: the runs.
        step: the step.
        record: the module calls of the step.
        between_ranks: whether the ranks are compared with each other, not with the run on one worker.
    """
    usual = _gradients(comparison.reference.at(step).gradient)
    first, *others = [_gradients(one.gradient) for one in comparison.run.of_ranks(step)]
    if between_ranks:
        usual, here = first, others
        allowed = [_EQUAL] * len(first)
    else:
        floor = rounding_of(comparison.reference.facts.epsilon)
        control = _gradients(comparison.control.at(step).gradient)
        here = [first]
        allowed = [
            allowed_deviation(relative(a, b), floor) if a.shape == b.shape else floor
            for a, b in zip(control, usual, strict=False)
        ]
    held = comparison.run.facts.parameters[comparison.run.at(step).optimizer]
    if {len(one) for one in (usual, *here)} != {len(held)}:
        return None
    values = [max(relative(one[k], usual[k]) for one in here) for k in range(len(held))]
    other = [k for k, value in enumerate(values) if value > allowed[k]]
    trained = [k for k in range(len(held)) if usual[k].any()]
    if not other or set(other) >= set(trained):
        return None
    last = other[-1]
    name = held[last].name.partition(": ")[2]
    call = _owner(record, name)
    if call is None:
        return None
    return ModuleDifference(call, "backward", "parameter", values[last], allowed[last], parameter=name)


def _gradients(sketch: Sequence[float]) -> list[Vector]:
    return list(np.array(sketch, dtype=np.float64).reshape(-1, BUCKETS))


def _owner(record: ModuleRecord, parameter: str) -> Call | None:
    """Return the call of the module that has a parameter, or of the nearest module around it."""
    calls = {call.name: call for call in reversed(record.calls)}
    name = parameter
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return calls[name]
    return None
