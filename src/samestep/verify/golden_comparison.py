"""Saves a golden run of a script, and compares a script with one.

What a commit has changed in the models and optimizers stands in their settings, and is named first; then come
initial weights, and the causes that any two runs can have.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from samestep.base.units import counted
from samestep.verify.causes import causes
from samestep.verify.compare import Comparison, rounding_of
from samestep.verify.golden import (
    GoldenFile,
    GoldenRun,
    Origin,
    described_machine,
    folded,
    golden_file,
    initial_sketches,
)
from samestep.verify.parameter_alignment import UnmatchedParametersError, drop_parameters
from samestep.verify.rank_features import exceptions_of
from samestep.verify.run_length import (
    LEAST_STEPS_OF_RANKS,
    TOTAL_S,
    FixedLength,
    RunLength,
    UntilEvaluated,
    WithinTime,
)
from samestep.verify.run_record import RunRecord, Vector
from samestep.verify.script_findings import (
    UNMATCHED,
    baseline_findings,
    is_conclusive,
    not_compared,
    not_reached,
    notes_of,
    nothing_compared,
    row_of,
)
from samestep.verify.script_runs import Script, ScriptRuns, length_after
from samestep.verify.tensor_summary import BUCKETS
from samestep.verify.trace import Facts
from samestep.verify.verdict import Cause, Finding, NotCompared, Report
from samestep.verify.verification import has_other_time

_INITIAL = 8.0
"""Units in the last place, relative to a tensor's norm, by which two machines draw other initial weights."""
_ARGUMENT = re.compile(r"(?:, )?(\w+)=(?:\([^()]*\)|[^,()]+)")
"""A named argument in the settings of a module, such as ``, eps=1e-05``."""
_SHOWN = 3
"""Changes that a message names."""
_OF_VALUES = ("gradient-scale", "gradient", "gradient-norm", "loss", "update", "parameters", "mean-of-means")
_OF_PRINTS = ("printed", "printed-text", "local-metric", "local-print")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenVerification:
    """A script on one number of workers, whose run is saved, or compared with a golden one."""

    script: Script
    runs: ScriptRuns
    workers: int
    # number of steps of each optimizer; None for as many as show an evaluation and a second epoch
    steps: int | None = None

    def save(self, origin: Origin) -> tuple[GoldenFile | None, Report]:
        """Run the script twice; return the golden file, and the report on the script.

        There is no file if two runs of the script do not agree, so that a third one could not.

        Raises:
            UsageError: the script fails, or makes no step.
        """
        has_one_clock = self.script.kind == "serial" or self.workers == 1
        length: RunLength = WithinTime(UntilEvaluated(), TOTAL_S / 2)
        if self.steps is not None or not has_one_clock:  # ranks that decide for themselves could part
            length = FixedLength(self.steps or LEAST_STEPS_OF_RANKS, of_each=True)
        reference, control = self.runs.baseline(self.script, self.workers, "golden run", length=length)
        findings = [*baseline_findings(reference, control), *notes_of(reference)]
        missing = not_reached(reference)
        report = Report(rows=[], findings=findings, steps=reference.steps, not_compared=missing)
        return golden_file(origin, reference, control) if is_conclusive(findings) else None, report

    def compare(self, golden: GoldenRun) -> Report:
        """Run the script once, and compare it with a golden run."""
        run = self.runs.run(self.script, self.workers, "", length=length_after(golden.run))
        missing: dict[NotCompared, str] = {}
        of_initial: list[Finding] = []
        if has_other_time(self.script.program, golden.run, run):
            both = min(golden.run.steps, run.steps)
            of_golden = {name: getattr(golden, name).steps_alone(both) for name in ("run", "control")}
            golden, run = replace(golden, **of_golden), run.steps_alone(both)
            missing["later-steps"] = f"step after {both - 1}: the clock ends the script's loop"
        try:
            golden, aligned = golden.aligned(run)
            of_initial = _initial_weights(golden, aligned)
            comparison = Comparison(golden.run, folded(aligned), golden.control)
        except UnmatchedParametersError:
            missing["parameters"] = UNMATCHED
            comparison = Comparison(*map(drop_parameters, (golden.run, run, golden.control)))
        has_other_torch = golden.origin.machine.get("torch") != described_machine()["torch"]
        changes = [*_changes(golden.run.facts, run.facts, run.size, has_other_torch), *of_initial]
        findings = _without_consequences(causes(comparison), changes)
        findings = _of_another_machine(findings, golden, comparison, self.script)
        findings = [*changes, *findings] or nothing_compared(comparison)
        row = row_of(comparison, [*findings, *notes_of(run)])
        missing |= {**not_reached(golden.run), **not_compared(comparison)}
        return Report(
            rows=[row], findings=[], steps=golden.run.steps, not_compared=missing, reference="golden"
        )


def _without_consequences(findings: Sequence[Finding], changes: Sequence[Finding]) -> list[Finding]:
    """Return the findings that changes of settings or initial weights do not explain."""
    explained = (*_OF_VALUES, *_OF_PRINTS) if changes else ()
    return [finding for finding in findings if finding.cause not in explained]


def _of_another_machine(
    findings: Sequence[Finding], golden: GoldenRun, comparison: Comparison, script: Script
) -> list[Finding]:
    """Return findings with those that another number of workers or another machine can make as exceptions."""
    is_elsewhere = golden.origin.workers != comparison.size
    exceptions = exceptions_of(comparison) if is_elsewhere and script.kind != "serial" else []
    if exceptions and any(finding.cause in (*_OF_VALUES, *_OF_PRINTS) for finding in findings):
        names = " and ".join(finding.message for finding in exceptions)
        unknown = comparison.finding(
            "not-compared",
            f"{names}, and the golden run is one of {counted(golden.origin.workers, 'worker')}.",
            advice=f"Save one of {comparison.size}.",
        )
        findings = [finding for finding in findings if finding.cause not in (*_OF_VALUES, *_OF_PRINTS)]
        return [*findings, unknown]
    if comparison.first is not None or (not is_elsewhere and golden.origin.machine == described_machine()):
        return list(findings)
    # All steps agree: rounding can still move a sample across a decision, as in an accuracy.
    return [
        replace(finding, kind="exception") if finding.cause in _OF_PRINTS else finding for finding in findings
    ]


def _changes(golden: Facts, here: Facts, size: int, has_other_torch: bool) -> list[Finding]:  # noqa: FBT001
    """Return the differences of the settings of two runs.

    Another version of torch can have arguments that one of the two lacks: those are not compared.
    """
    modules_of_both = _by_place(golden.modules), _by_place(here.modules)
    settings_of_both = _by_name(golden.optimizers), _by_name(here.optimizers)
    if has_other_torch:
        in_golden, in_run = modules_of_both
        modules_of_both = (
            _without_other_arguments(in_golden, in_run),
            _without_other_arguments(in_run, in_golden),
        )
        settings_of_both = _common(*settings_of_both)
    modules = _changed_texts(*modules_of_both)
    dropped = [change for change in modules if "Dropout" in change]
    of_modules = [change for change in modules if "Dropout" not in change]
    if not modules and golden.dropouts != here.dropouts:
        dropped = [f"{_rates(here.dropouts)}, in the golden run {_rates(golden.dropouts)}"]
    groups = _changed_texts(*settings_of_both)
    named: tuple[tuple[Cause, str, Sequence[str]], ...] = (
        ("model-changed", "the model is another one", of_modules),
        ("dropout-rate", "values are dropped at other rates", dropped),
        ("optimizer-changed", "the optimizer has other settings", groups),
    )
    return [
        Finding(cause=cause, message=f"{words}: {_listed(changed)}.", workers=size)
        for cause, words, changed in named
        if changed
    ]


def _common(golden: Mapping[str, str], here: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the entries whose names both have."""
    names = golden.keys() & here.keys()
    return {name: golden[name] for name in golden if name in names}, {
        name: here[name] for name in here if name in names
    }


def _without_other_arguments(modules: Mapping[str, str], known_modules: Mapping[str, str]) -> dict[str, str]:
    """Return settings of modules without the arguments that those of the other run do not have."""
    kept = {}
    for name, text in modules.items():
        known = {argument[1] for argument in _ARGUMENT.finditer(known_modules.get(name, text))}
        unknown = (argument for argument in _ARGUMENT.finditer(text) if argument[1] not in known)
        kept[name] = reduce(lambda shorter, argument: shorter.replace(argument[0], "", 1), unknown, text)
    return kept


def _changed_texts(golden: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return the entries that differ, in words."""
    names = [*golden, *(name for name in here if name not in golden)]
    return [
        f"{name} is {here.get(name, 'missing')}, in the golden run {golden.get(name, 'missing')}"
        for name in names
        if golden.get(name) != here.get(name)
    ]


def _by_name(optimizers: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, str]:
    """Return each setting by its words, such as "weight_decay of optimizer 0 (group 1)"."""
    return {
        f"{name} of optimizer {number}" + (f" (group {group})" if len(groups) > 1 else ""): text
        for number, groups in enumerate(optimizers)
        for group, settings in enumerate(groups)
        for name, text in settings.items()
    }


def _by_place(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of each module by its words, such as "module 0.attention of model 1"."""
    places = {}
    for name, text in modules.items():
        number, _, path = name.partition(": ")
        of_model = "the model" if number == "0" else f"model {number}"
        places[f"module {path} of {of_model}" if path else of_model] = text
    return places


def _rates(dropouts: Mapping[str, Sequence[float]]) -> str:
    rates = (f"{name} at {', '.join(f'{rate:g}' for rate in rates)}" for name, rates in dropouts.items())
    return "; ".join(rates) or "none"


def _listed(changed: Sequence[str]) -> str:
    more = len(changed) - _SHOWN
    return "; ".join(changed[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _initial_weights(golden: GoldenRun, aligned: RunRecord) -> list[Finding]:
    """Return the finding that parameters begin with other values, if they do."""
    differing = [
        golden.run.facts.parameters[number][index].name.partition(": ")[2] or f"parameter {index}"
        for number, (here, usual) in enumerate(zip(initial_sketches(aligned), golden.initial, strict=False))
        if here.shape == usual.shape
        for index in _differing(here, usual, golden.run, is_first=number == golden.run.at(0).optimizer)
    ]
    if not differing:
        return []
    return [
        Finding(
            cause="initial-weights",
            message=f"the training begins with other weights than the golden run: {_listed(differing)}.",
            workers=aligned.size,
            step=0,
        )
    ]


def _differing(here: Vector, usual: Vector, run: RunRecord, *, is_first: bool) -> list[int]:
    """Return the indices of parameters whose sketches differ by more than the drawing of weights explains.

    Those of an optimizer that begins later may have been trained by another one before.
    """
    rows, usual_rows = here.reshape(-1, BUCKETS), usual.reshape(-1, BUCKETS)
    allowed = _INITIAL * run.facts.parameter_epsilon if is_first else rounding_of(run.facts.epsilon)
    norms = np.linalg.norm(usual_rows, axis=1)
    distances = np.abs(rows - usual_rows).max(axis=1, initial=0.0)
    return [int(index) for index in np.flatnonzero(distances > allowed * norms)]
