"""Converts the paths of logs in a study's notes, which are relative to the folder of the study."""

import re
from dataclasses import replace
from pathlib import Path

from samestep.studies.scaling.analysis.study import Study

_NAMED = re.compile(r"(?<= Its log: )(\S+)(?=\.$)")


def log_sentence(log: Path) -> str:
    """Return the sentence that names the log of a run at the end of a note.

    Args:
        log: its path, relative to the study's folder.
    """
    return f"Its log: {log}."


def seen_from_here(study: Study, folder: Path) -> Study:
    """Return `study` with paths of logs that are relative to the current folder.

    Args:
        study: as it is on disk.
        folder: of the study.
    """
    notes = (_NAMED.sub(lambda log: str(folder / log[0]), note) for note in study.notes)
    return replace(study, notes=tuple(notes))
