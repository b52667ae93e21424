"""Collects what a verification reports besides differences: notes, and what it did not compare."""

import os
from collections.abc import Collection
from typing import cast

from samestep.verify.compare import Comparison
from samestep.verify.printed_lines import has_fractions
from samestep.verify.run_record import RunRecord
from samestep.verify.sample_causes import padding
from samestep.verify.trace import Note, Place
from samestep.verify.verdict import Finding, NotCompared, NoteCode

_SHOWN = 3  # number of files in the message about them


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
    seen = {(one.cause, one.place) for one in known}
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
    ranks = sorted({rank for found in common.values() for rank in found})
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


def nothing_compared(comparison: Comparison) -> Finding | None:
    """Return the finding that neither losses nor parameters can be compared, if that is so."""
    steps = range(comparison.steps)
    if not steps or _has_loss(comparison) or any(comparison.reference.at(step).after for step in steps):
        return None
    return comparison.finding(
        "not-compared",
        "neither the loss nor the parameters of the runs can be compared, so nothing is proven.",
    )


def _has_loss(comparison: Comparison) -> bool:
    runs = (comparison.reference, comparison.run)
    return any(all(run.has_loss(step) for run in runs) for step in range(comparison.steps))
