"""Where the logs are of which a study's notes tell: from its own folder, or from where somebody stands."""

import re
from dataclasses import replace
from pathlib import Path

from samestep.scaling.study import Study

_NAMED = re.compile(r"(?<= Its log: )(\S+)(?=\.$)")


def named(log: Path) -> str:
    """Return the sentence that ends a note on a run with its log.

    Args:
        log: from the study's folder.
    """
    return f"Its log: {log}."


def seen_from_here(study: Study, folder: Path) -> Study:
    """Return `study` with notes that name logs as they are found from the current folder.

    Args:
        study: as it is written.
        folder: of the study.
    """
    notes = (_NAMED.sub(lambda log: str(folder / log[0]), note) for note in study.notes)
    return replace(study, notes=tuple(notes))
