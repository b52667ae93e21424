"""Collects the notes of observers: mistakes that make no difference between runs."""

from collections.abc import Collection
from typing import cast

from samestep.studies.verify.run_record import RunRecord
from samestep.studies.verify.trace import Note
from samestep.studies.verify.verdict import Finding, NoteCode


def notes_of(run: RunRecord, known: Collection[Finding] = ()) -> list[Finding]:
    """Return one finding for each code and place of a run's notes, with the ranks that noted it.

    Args:
        run: the run.
        known: findings about runs on fewer workers, whose codes and places are left out.
    """
    ranks: dict[tuple[str, tuple[str, int] | None], list[int]] = {}
    first: dict[tuple[str, tuple[str, int] | None], Note] = {}
    for trace in run.traces:
        for note in trace.facts.notes:
            key = (note.code, _place(note))
            first.setdefault(key, note)
            if trace.facts.rank not in ranks.setdefault(key, []):
                ranks[key].append(trace.facts.rank)
    seen = {(one.cause, one.place) for one in known}
    return [
        Finding(
            cause=cast("NoteCode", note.code),
            message=note.message,
            workers=run.size,
            step=note.step,
            kind="note",
            ranks=[] if len(ranks[key]) == run.size else ranks[key],
            place=_place(note),
        )
        for key, note in first.items()
        if key not in seen
    ]


def _place(note: Note) -> tuple[str, int] | None:
    return None if note.file is None or note.line is None else (note.file, note.line)
