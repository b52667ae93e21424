"""Adds to a finding the module in which the runs first differ."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from samestep.studies.verify.case import Comparison
from samestep.studies.verify.modules.first_difference import ModuleDifference, ModuleRecords, Part
from samestep.studies.verify.modules.parameter_difference import parameter_difference
from samestep.studies.verify.verdict import Finding

_OF_VALUES = ("gradient", "gradient-norm", "gradient-scale", "loss", "update", "parameters")
_BETWEEN_RANKS = ("never-averaged", "accumulation-not-averaged")
_PARTS: dict[Part, str] = {
    "input": "its input",
    "output": "its output",
    "loss": "the gradient of its output, which the loss gives,",
    "gradient": "the gradient of its input",
}


def with_module(found: Sequence[Finding], recorded: Callable[[int], Comparison]) -> list[Finding]:
    """Return findings, the gravest one with the module that differs first, if its cause is not known.

    Args:
        found: the findings, the gravest first.
        recorded: runs the script again up to a step, and records the modules of that step.
    """
    if not found or found[0].cause not in (*_OF_VALUES, *_BETWEEN_RANKS):
        return list(found)
    first, *others = found
    difference = None if first.step is None else _difference(first, first.step, recorded(first.step))
    return [first if difference is None else _named(first, difference), *others]


def _difference(finding: Finding, step: int, comparison: Comparison) -> ModuleDifference | None:
    runs = comparison.reference, comparison.control, comparison.run
    if any(run.failure is not None or run.steps <= step for run in runs):
        return None
    if not all(record.calls for run in runs for record in run.modules):
        return None
    (reference,), (control,) = comparison.reference.modules, comparison.control.modules
    between_ranks = finding.cause in _BETWEEN_RANKS
    if not between_ranks:
        records = ModuleRecords(
            reference, control, comparison.run.modules, comparison.reference.facts.epsilon
        )
        if (difference := records.first_difference()) is not None:
            return difference
    return parameter_difference(comparison, step, reference, between_ranks=between_ranks)


def _named(finding: Finding, difference: ModuleDifference) -> Finding:
    call = difference.call
    name = call.name or call.kind
    part = f"the gradient of {difference.parameter}" if difference.parameter else _PARTS[difference.part]
    message = (
        f"{finding.message} The first module that differs is {name} ({call.kind}, {call.file}:{call.line}), "
        f"in {difference.phase}: {part} deviates by {difference.value:.1e}, rounding explains "
        f"{difference.allowed:.1e}."
    )
    place = (call.file, call.line)
    return replace(finding, message=message, place=place, module=name, phase=difference.phase)
