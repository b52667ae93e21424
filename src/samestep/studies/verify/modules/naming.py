"""Adds to a finding the module in which the runs first differ."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from samestep.studies.verify.case import Comparison
from samestep.studies.verify.modules.first_difference import (
    ModuleDifference,
    ModuleRecords,
    Part,
    differ_between_ranks,
    first_between_ranks,
    first_from_reference,
)
from samestep.studies.verify.modules.module_record import ModuleRecord
from samestep.studies.verify.verdict import Finding

_OF_VALUES = ("gradient", "gradient-norm", "gradient-scale", "loss", "update", "parameters")
_BETWEEN_RANKS = ("never-averaged", "accumulation-not-averaged")
_PARTS: dict[Part, str] = {
    "input": "its input",
    "output": "its output",
    "input of part": "the input that it gives to a part",
    "loss": "the gradient that the loss gives to its output",
    "gradient": "the gradient of its input",
    "gradient of part": "the gradient that it gives to the output of a part",
}


def with_module(
    found: Sequence[Finding], comparison: Comparison, recorded: Callable[[int], Comparison]
) -> list[Finding]:
    """Return findings, the gravest one with the module that differs first, if its cause is not known.

    Args:
        found: the findings, the gravest first.
        comparison: the runs that were compared.
        recorded: runs the script again up to a step, and records the modules of that step.
    """
    if not found or found[0].step is None:
        return list(found)
    first, *others = found
    difference = None
    if first.cause in _OF_VALUES:
        difference = _of_values(found[0].step, recorded(found[0].step))
    elif first.cause in _BETWEEN_RANKS and differ_between_ranks(comparison, found[0].step):
        difference = _between_ranks(found[0].step, recorded(found[0].step))
    return [first if difference is None else _named(first, difference), *others]


def _of_values(step: int, again: Comparison) -> ModuleDifference | None:
    reference = _reference(step, again)
    if reference is None:
        return None
    (control,), epsilon = again.control.modules, again.reference.facts.epsilon
    records = ModuleRecords(reference, control, again.run.modules, epsilon)
    return records.first_difference() or first_from_reference(again, step, reference)


def _between_ranks(step: int, again: Comparison) -> ModuleDifference | None:
    reference = _reference(step, again)
    return None if reference is None else first_between_ranks(again, step, reference)


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
    name = call.name or call.kind
    part = f"the gradient of {difference.parameter}" if difference.parameter else _PARTS[difference.part]
    file, line = place = call.called if difference.is_outside else call.place
    deviation = f"{part} deviates by {difference.value:.1e}, rounding explains {difference.allowed:.1e}"
    if difference.is_outside:
        what = f"No module differs before the call of {name} at {file}:{line}: {deviation}."
    else:
        what = (
            f"The first module that differs is {name} ({call.kind}, {file}:{line}), in {difference.phase}: "
            f"{deviation}."
        )
    return replace(
        finding,
        message=f"{finding.message} {what}",
        place=place,
        module="" if difference.is_outside else name,
        phase=difference.phase,
    )
