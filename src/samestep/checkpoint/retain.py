"""Which checkpoints stay once a newer one is there."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.errors import CheckpointError, UsageError
from samestep.base.regular_files import lies_at
from samestep.checkpoint.choose import checkpoints_in, step_of
from samestep.checkpoint.files import delete, flush
from samestep.checkpoint.layout import MANIFEST, MARK
from samestep.checkpoint.manifest import read_manifest
from samestep.checkpoint.own import OwnFolders
from samestep.checkpoint.read import read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays: the newest ones, and the best by score."""

    last: int = 2
    """How many of the newest; at least 1."""
    best: bool = True
    """The one with the highest score as well; of equal ones the newest."""

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(f"of the checkpoints, the last {self.last} cannot be kept: keep 1 or more.")


def doomed(scores: Mapping[int, float | None], keep: Keep, *, newest: int) -> list[int]:
    """Return the steps of which the checkpoint may go.

    Args:
        scores: of the checkpoints there are, by step; None where one has none.
        keep: what stays.
        newest: the step just written. Later ones are left alone: they may be damaged, or of a course that
            the run has left, and must not push out the one that is known to be good.

    >>> doomed({10: 0.9, 20: 0.7, 30: 0.8, 40: None}, Keep(last=2), newest=40)
    [20]
    """
    steps = sorted(step for step in scores if step <= newest)
    kept = set(steps[-keep.last :])
    scored = [(score, step) for step in steps if (score := scores[step]) is not None]
    if keep.best and scored:
        kept.add(max(scored)[1])
    return [step for step in steps if step not in kept]


def prune(folder: Path, keep: Keep, *, newest: int) -> str | None:
    """Delete the checkpoints in `folder` that need not stay now that step `newest` is on disk.

    What this run has not written, is no whole checkpoint, or holds any other file is neither counted nor
    deleted.

    Returns:
        which could not be deleted or were left alone, and why; None where there are none. The new one is no
        worse for it.
    """
    own = OwnFolders.claim(folder)
    scores: dict[int, float | None] = {}
    paths: dict[int, Path] = {}
    alone = []
    for path in reversed(checkpoints_in(folder)):
        name, step = path.name, step_of(path.name)
        if step is None:
            continue
        if (why := own.foreign(name)) is not None:
            alone.append(f"{name} ({why})")
            continue
        with suppress(CheckpointError):
            if own.files_in(name) == read_manifest(folder / name).keys() | {MANIFEST, MARK}:
                scores[step], paths[step] = _score(read_state(path)), path
    tried = [(paths[step], _delete(paths[step])) for step in doomed(scores, keep, newest=newest)]
    stuck = [f"{path.name} ({why})" for path, why in tried if why is not None]
    told = []
    if stuck:
        told.append(
            f"old checkpoints in {folder} cannot be deleted: {', '.join(stuck)}. Delete them by hand."
        )
    if alone:
        told.append(f"neither counted nor deleted in {folder}: {', '.join(alone)}.")
    return " ".join(told) or None


def _delete(path: Path) -> str | None:
    """Delete a checkpoint; return why it could not be."""
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


def adopt(checkpoint: Path) -> None:
    """Mark a whole checkpoint that an earlier version has written, without a mark, as this run's.

    For the one that a run goes on from: it may be replaced by one of the same step, and deleted later.
    """
    with suppress(CheckpointError, OSError):
        files = frozenset(read_manifest(checkpoint)) | {MANIFEST}
        OwnFolders.claim(checkpoint.parent).adopt(checkpoint.name, files)


def set_aside_later(folder: Path, *, than: int) -> tuple[list[Path], str | None]:
    """Rename this run's checkpoints after step `than`, so that no resume takes them.

    For a run that goes on from an earlier one: they are damaged, or of a course it has left. Nothing is
    deleted: ``step-120`` becomes ``left-step-120``, or ``left-step-120.2`` where there is one.

    Returns:
        their new names; and which others were left alone, and why, in one line, or None.

    Raises:
        CheckpointError: `folder` cannot be read or written.
    """
    names = (path.name for path in checkpoints_in(folder))
    later = [name for name in names if (step := step_of(name)) is not None and step > than]
    if not later:
        return [], None
    moved, alone = [], []
    try:
        own = OwnFolders.claim(folder)
        for name in later:
            if (why := own.foreign(name)) is not None:
                alone.append(f"{name} ({why})")
                continue
            moved.append(folder / _free_name(folder, f"left-{name}"))
            own.rename(name, moved[-1].name)
        flush(folder)
    except OSError as error:
        raise CheckpointError(f"cannot put {folder} in order: {error.strerror or error}.") from error
    if not alone:
        return moved, None
    return moved, (
        f"left as they are in {folder}, after step {than}: {', '.join(alone)}. A later start may take one of "
        "them for the newest checkpoint: move them away."
    )


def _free_name(folder: Path, name: str) -> str:
    free, count = name, 1
    while lies_at(folder / free):
        count += 1
        free = f"{name}.{count}"
    return free
