"""Collects what a verification reports besides differences between runs on one and on several workers.

These are faults that two runs on the same number of workers show, notes of the observers, and what was not
compared.
"""

import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from samestep.base.units import counted
from samestep.verify.compare import Comparison, Deviation, beginning, is_half, largest
from samestep.verify.printed_lines import has_fractions
from samestep.verify.run_record import RunRecord, same_samples
from samestep.verify.sample_causes import REPEATED_EPOCHS, padding
from samestep.verify.trace import Note, Place
from samestep.verify.verdict import Cause, Finding, NotCompared, NoteCode, Row

_NUMBERS = re.compile(r"\d{2,}")  # dates and times; the rank is one digit of most names
_SHOWN = 3  # number of files in the message about them
UNMATCHED = "parameter or gradient (those of the runs cannot be matched)"
"""The entry of a report for two runs with other parameters."""


def notes_of(run: RunRecord, known: Collection[Finding] = ()) -> list[Finding]:
    """Return one finding for each code and place of a run's notes, with the ranks that noted it.

    Args:
        run: the run.
        known: findings about runs on fewer workers, whose codes and places are left out.
    """
    ranks: dict[tuple[str, Place | None], list[int]] = {}
    first: dict[tuple[str, Place | None], Note] = {}
    for trace in run.traces:
        for note in trace.facts.notes:
            key = (note.code, note.place)
            first.setdefault(key, note)
            if trace.facts.rank not in ranks.setdefault(key, []):
                ranks[key].append(trace.facts.rank)
    seen = {(finding.cause, finding.place) for finding in known}
    return [
        Finding(
            cause=cast("NoteCode", note.code),
            message=note.message,
            workers=run.size,
            kind="note",
            ranks=[] if len(ranks[key]) == run.size else ranks[key],
            place=note.place,
        )
        for key, note in first.items()
        if key not in seen
    ]


def of_files(run: RunRecord) -> list[Finding]:
    """Return the findings about the files that the ranks of a distributed script write."""
    return [*several_writers(run), *folders_by_clock(run)]


def several_writers(run: RunRecord) -> list[Finding]:
    """Return a finding about the files that several ranks of a distributed script have written."""
    if run.runs_once:
        return []
    writers: dict[str, list[int]] = {}
    for trace in run.traces:
        for path in trace.facts.written:
            if not _is_cache(path):
                writers.setdefault(path, []).append(trace.facts.rank)
    common = {path: ranks for path, ranks in writers.items() if len(ranks) > 1}
    if not common:
        return []
    names = [os.path.relpath(path) for path in common]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    ranks = sorted({rank for writing in common.values() for rank in writing})
    return [
        Finding(
            cause="several-writers",
            message=f"several ranks write the same {'file' if len(names) == 1 else 'files'}: {shown}. Let "
            "rank 0 alone write, or give each rank a file of its own.",
            workers=run.size,
            kind="note",
            ranks=[] if len(ranks) == run.size else ranks,
        )
    ]


def folders_by_clock(run: RunRecord) -> list[Finding]:
    """Return a finding about folders of ranks whose names differ in numbers that are not their ranks."""
    of_form: dict[str, dict[int, set[str]]] = {}
    for trace in run.traces if not run.runs_once else ():
        for folder in {str(Path(path).parent) for path in trace.facts.written if not _is_cache(path)}:
            of_form.setdefault(_NUMBERS.sub("#", folder), {}).setdefault(trace.facts.rank, set()).add(folder)
    for of_ranks in of_form.values():
        first, *further = of_ranks.items()
        for rank, folders in further:
            if folders & first[1] or all(rank in map(int, _NUMBERS.findall(folder)) for folder in folders):
                continue
            names = " and ".join(os.path.relpath(min(some)) for some in (first[1], folders))
            return [
                Finding(
                    cause="folders-by-clock",
                    message=f"ranks {first[0]} and {rank} write to folders of other names, {names}, as by "
                    "the clock of each. Let rank 0 choose the name, and broadcast it.",
                    workers=run.size,
                    kind="note",
                    ranks=[first[0], rank],
                )
            ]
    return []


def _is_cache(path: str) -> bool:
    """Return whether a path is one of a hidden folder, of compiled code or of a lock, as libraries write."""
    parts = path.split("/")
    return path.endswith(".lock") or any(part.startswith(".") or part == "__pycache__" for part in parts)


def not_reached(reference: RunRecord) -> dict[NotCompared, str]:
    """Return what a run on one worker did not reach in its steps."""
    missing: dict[NotCompared, str] = {}
    if not reference.evaluated(reference.steps).size:
        missing["evaluation"] = "evaluation"
    samples = any(reference.samples(step).size for step in range(reference.steps))
    if not samples or reference.first_epoch() == reference.steps:
        missing["second-epoch"] = "second epoch"
    return missing


def not_compared(comparison: Comparison) -> dict[NotCompared, str]:
    """Return what one of the runs did not record."""
    missing: dict[NotCompared, str] = {}
    if not _has_loss(comparison):
        missing["loss"] = "loss (no backward from a single number)"
    if padding(comparison) is not None and not has_fractions(comparison.reference):
        missing["evaluation"] = "evaluation (it is padded, and the script prints no fraction)"
    return missing


def nothing_compared(comparison: Comparison, *, even_without_steps: bool = False) -> list[Finding]:
    """Return the finding that neither losses nor parameters can be compared, if that is so."""
    steps = range(comparison.steps)
    if (
        (not steps and not even_without_steps)
        or _has_loss(comparison)
        or any(comparison.reference.at(step).after for step in steps)
    ):
        return []
    message = "neither the loss nor the parameters of the runs can be compared, so nothing is proven."
    return [comparison.finding("not-compared", message)]


def row_of(comparison: Comparison, findings: Sequence[Finding]) -> Row:
    """Return the row of a report about a comparison and what it found."""
    is_precision = any(finding.cause == "single-precision" for finding in findings)
    return Row(
        workers=comparison.size,
        steps=comparison.steps,
        deviations=largest(comparison.deviations),
        is_rounding=comparison.first is None or is_precision,
        findings=findings,
    )


def _has_loss(comparison: Comparison) -> bool:
    runs = (comparison.reference, comparison.run)
    return any(all(run.has_loss(step) for run in runs) for step in range(comparison.steps))


_SEED = "Seed every random generator with a constant: no comparison is possible until then."


def is_conclusive(findings: Sequence[Finding]) -> bool:
    """Return whether a script with such faults can be compared with other runs."""
    return not any(finding.cause in ("unseeded", "unseeded-data") for finding in findings)


def other_samples(reference: RunRecord, again: RunRecord) -> int | None:
    """Return the first step in which two runs of one script use different samples."""
    steps = range(min(reference.steps, again.steps))
    return next(
        (step for step in steps if not same_samples(reference.samples(step), again.samples(step))), None
    )


def baseline_findings(reference: RunRecord, control: RunRecord) -> list[Finding]:
    """Return the faults of a script, from a run and one with disturbed gradients."""
    size = reference.size
    findings = _unrepeatable(reference, control)
    losses = np.array([reference.losses(step)[0] for step in range(reference.steps)])
    if not np.any(losses):
        findings.append(
            _script_fault(size, "zero-loss", "the loss is zero in all steps, so equal runs prove nothing.", 0)
        )
    known = [step for step in range(reference.steps) if reference.at(step).losses]
    nan = [step for step in known if np.isnan(reference.at(step).losses).any()]
    if nan and nan[-1] == known[-1]:
        findings.append(
            _script_fault(size, "nan-loss", "the last loss is NaN, so equal runs prove nothing.", nan[0])
        )
    if reference.facts.repeated_epochs:
        findings.append(_script_fault(size, "no-set-epoch", REPEATED_EPOCHS))
    return findings


def _unrepeatable(reference: RunRecord, control: RunRecord) -> list[Finding]:
    """Return the differences between the two runs that appear before the gradients are disturbed."""
    size = reference.size
    on = f"two runs on {counted(size, 'worker')}"
    if (step := other_samples(reference, control)) is not None:
        message = (
            f"{on} use different samples in step {step}, so no comparison is possible. "
            "Seed the data and their order."
        )
        return [_script_fault(size, "unseeded-data", message, step)]
    if not control.steps:
        steps = counted(reference.steps, "step")
        return [_script_fault(size, "unseeded", f"of {on} one has {steps}, the other 0 steps. {_SEED}", 0)]
    deviations = [deviation for deviation in beginning(reference, control) if not deviation.is_rounding]
    if not deviations:
        return []
    return [_different_start(max(deviations, key=lambda deviation: deviation.value), reference, control)]


def _script_fault(size: int, cause: Cause, message: str, step: int | None = None) -> Finding:
    return Finding(cause=cause, message=message, workers=size, step=step)


def _different_start(most: Deviation, reference: RunRecord, control: RunRecord) -> Finding:
    """Return the finding that two runs start from different values."""
    quantity = most.quantity
    if quantity == "loss":
        usual, again = (run.at(0).losses[:1] for run in (reference, control))
        quantity = f"losses, {usual[0] if usual else 'none'} and {again[0] if again else 'none'}"
    # A kernel of lower accuracy gives half of a type's digits; another seed gives none.
    is_small = most.value <= math.sqrt(reference.facts.epsilon) and not is_half(reference)
    advice = (
        "A missing seed makes a larger difference: a computation of varying accuracy (several threads?) or "
        "the time is the likely source, and as much counts as rounding here."
        if is_small
        else _SEED
    )
    return Finding(
        cause="unsteady" if is_small else "unseeded",
        message=f"two runs on {counted(reference.size, 'worker')} start with different {quantity}: the "
        f"relative difference is {most.value:.1e}, rounding explains {most.allowed:.1e}. {advice}",
        workers=reference.size,
        step=0,
        max_relative_deviation=most.value if math.isfinite(most.value) else None,
        kind="exception" if is_small else "fault",
    )
