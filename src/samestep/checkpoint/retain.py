"""Which checkpoints stay once a newer one is there."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.errors import CheckpointError, UsageError
from samestep.checkpoint.choose import folder_of, steps_in
from samestep.checkpoint.files import delete, flush
from samestep.checkpoint.read import read_state
from samestep.checkpoint.save import refuse_foreign


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

    What is no checkpoint, or holds a file that samestep did not write, is neither counted nor deleted.

    Returns:
        which of them could not be deleted, and why; None where all could. The new one is no worse for it.
    """
    scores: dict[int, float | None] = {}
    for step in steps_in(folder):
        with suppress(CheckpointError, OSError):
            refuse_foreign(folder_of(folder, step))
            scores[step] = _score(read_state(folder_of(folder, step)))
    tried = [(step, _delete(folder_of(folder, step))) for step in doomed(scores, keep, newest=newest)]
    stuck = [f"{folder_of(folder, step).name} ({why})" for step, why in tried if why is not None]
    if not stuck:
        return None
    return f"old checkpoints in {folder} cannot be deleted: {', '.join(stuck)}. Delete them by hand."


def _delete(path: Path) -> str | None:
    """Delete a checkpoint; return why it could not be."""
    try:
        delete(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _score(state: Mapping[str, Any]) -> float | None:
    score = state.get("score")
    return score if isinstance(score, int | float) and not math.isnan(score) else None


def set_aside_later(folder: Path, *, than: int) -> list[Path]:
    """Rename the checkpoints after step `than`, so that no resume takes them; return their new names.

    For a run that goes on from an earlier one: they are damaged, or of a course it has left. Nothing is
    deleted: ``step-120`` becomes ``left-step-120``, or ``left-step-120.2`` where there is one.
    """
    moved = []
    for step in steps_in(folder):
        if step > than:
            path = folder_of(folder, step)
            target, count = folder / f"left-{path.name}", 1
            while target.exists():
                count += 1
                target = folder / f"left-{path.name}.{count}"
            moved.append(path.rename(target))
    if moved:
        flush(folder)
    return moved
