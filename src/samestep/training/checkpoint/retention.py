"""Deletes old checkpoints, and sets aside those of an abandoned lineage."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.errors import CheckpointError, UsageError
from samestep.base.regular_files import lies_at
from samestep.training.checkpoint.checkpoint_folders import OwnedFolders, delete, flush
from samestep.training.checkpoint.newest import checkpoints_in, free_name
from samestep.training.checkpoint.read import read_state
from samestep.training.checkpoint.snapshot import MANIFEST, MARK, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule for which checkpoints stay: the newest ones, and the best by score."""

    last: int = 2  # number of newest checkpoints that stay; at least 1
    best: bool = True  # whether the one with the highest score stays as well; of equal ones the newest

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(f"the number of checkpoints to keep is {self.last}; use 1 or more.")


def expired(scores: Mapping[int, float | None], keep: Retention, *, newest: int) -> list[int]:
    """Return the steps whose checkpoints can be deleted.

    `scores` are those of the existing checkpoints, by step, and `newest` the step just written. Later ones
    are ignored: they can be damaged or of an abandoned lineage, and must not displace the one that was just
    written.

    >>> expired({10: 0.9, 20: 0.7, 30: 0.8, 40: None}, Retention(last=2), newest=40)
    [20]
    """
    steps = sorted(step for step in scores if step <= newest)
    kept = set(steps[-keep.last :])
    scored = [(score, step) for step in steps if (score := scores[step]) is not None]
    if keep.best and scored:
        kept.add(max(scored)[1])
    return [step for step in steps if step not in kept]


def prune(folder: Path, keep: Retention, *, newest: int) -> str | None:
    """Delete the checkpoints in `folder` that `keep` does not retain, after step `newest` was written.

    Folders that are another run's, incomplete, or contain any other file are neither counted nor deleted.

    Returns:
        a warning that names the folders which could not be deleted or are not this run's; None without any.
    """
    own = OwnedFolders.claim(folder)
    scores: dict[int, float | None] = {}
    paths: dict[int, Path] = {}
    skipped = []
    for step, path in reversed(checkpoints_in(folder)):
        name = path.name
        if (why := own.not_owned(name)) is not None:
            skipped.append(f"{name} ({why})")
            continue
        with suppress(CheckpointError):
            if own.files_in(name) == read_manifest(folder / name).keys() | {MANIFEST, MARK}:
                scores[step], paths[step] = _score(read_state(path)), path
    tried = [(paths[step], _delete(paths[step])) for step in expired(scores, keep, newest=newest)]
    stuck = [f"{path.name} ({why})" for path, why in tried if why is not None]
    warnings = []
    if stuck:
        warnings.append(
            f"old checkpoints in {folder} cannot be deleted: {', '.join(stuck)}. Delete them by hand."
        )
    if skipped:
        warnings.append(f"neither counted nor deleted in {folder}: {', '.join(skipped)}.")
    return " ".join(warnings) or None


def _delete(path: Path) -> str | None:
    """Delete a checkpoint; return the reason if that fails."""
    try:
        delete(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _score(state: Mapping[str, Any]) -> float | None:
    score = state.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
        return None
    return score


def set_aside_later(folder: Path, *, than: int) -> tuple[list[Path], str | None]:
    """Rename this run's checkpoints after step `than`, so that no later resume chooses them.

    A run that resumes from an earlier checkpoint abandons them. Nothing is deleted: ``step-120`` becomes
    ``left-step-120``, or ``left-step-120.2`` if that exists.

    Returns:
        their new paths, and a warning about those of other runs, or None.

    Raises:
        CheckpointError: `folder` cannot be read or written.
    """
    later = [path.name for step, path in checkpoints_in(folder) if step > than]
    if not later:
        return [], None
    moved, skipped = [], []
    try:
        own = OwnedFolders.claim(folder)
        for name in later:
            if (why := own.not_owned(name)) is not None:
                skipped.append(f"{name} ({why})")
                continue
            moved.append(folder / free_name(f"left-{name}", lambda free: lies_at(folder / free)))
            own.rename(name, moved[-1].name)
        flush(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot rename the checkpoints after step {than} in {folder}: {error.strerror or error}."
        ) from error
    if not skipped:
        return moved, None
    return moved, (
        f"not renamed in {folder}, though after step {than}: {', '.join(skipped)}. A later start can choose "
        "one of them as the newest checkpoint: move them away."
    )
