"""Reads and writes ``study.json``, a study on disk."""

import re
from dataclasses import asdict, replace
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.record import write_json
from samestep.base.typed_json import FormatError, read_as, read_json
from samestep.studies.scaling.analysis.study import FORMAT, Study

NAME = "study.json"
"""The name of the file in a study's folder."""

_BYTES = 32 << 20  # the largest file that is read; a study of a thousand workers has some megabytes
_LOG = re.compile(r"(?<= Its log: )(\S+)(?=\.$)")  # at the end of the note on a failed run


def write_study(path: Path, study: Study) -> None:
    """Write `study` to `path` atomically: a reader finds the old file or the new one.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_json(path, asdict(study))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from None


def read_study(path: Path) -> Study:
    """Return the study in `path`, or in the ``study.json`` of the folder `path`.

    Raises:
        UsageError: there is none, it is damaged, or it has another format; names the place.
    """
    file = path / NAME if path.is_dir() else path
    found = read_json(file, most=_BYTES)
    if not isinstance(found, dict) or not {"format", "points"} <= found.keys():
        raise UsageError(f"{file} is not a study: it lacks format or points.")
    if found["format"] != FORMAT:
        raise UsageError(
            f"{file} is of format {found['format']}, and this version of samestep reads {FORMAT}: "
            "read it with the version that wrote it."
        )
    try:
        study: Study = read_as(Study, found, "study")
        _check(study)
    except FormatError as error:
        raise UsageError(f"{file} is damaged: {error}.") from None
    return study


def _check(study: Study) -> None:
    """Raise `FormatError` if parts of a study contradict each other."""
    if study.verdict is not None and not study.points:
        raise FormatError("study has a verdict and no points")
    for number, point in enumerate(study.points):
        rows = len(point.timeline)
        if rows not in (0, len(point.ranks) or point.workers):  # one rank records a script that runs once
            where = f"study.points[{number}].timeline"
            raise FormatError(f"{where} is of {rows} workers, and the point of {point.workers}")


def seen_from_here(study: Study, folder: Path) -> Study:
    """Return the `study` of `folder` with paths of logs that are relative to the current folder."""
    notes = (_LOG.sub(lambda log: str(folder / log[0]), note) for note in study.notes)
    return replace(study, notes=tuple(notes))
