"""Finds the newest usable checkpoint in a folder."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import CheckpointError
from samestep.base.regular_files import lies_at
from samestep.training.checkpoint.atomic_folders import restore
from samestep.training.checkpoint.layout import MANIFEST, STATE
from samestep.training.checkpoint.owned_checkpoints import OwnedFolders
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.snapshot import Snapshot

_NAME = re.compile(r"step-(?P<step>0|[1-9][0-9]*)(?:\.(?P<count>[1-9][0-9]*))?")
_SET_ASIDE = re.compile(r"left-step-\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class SelectedCheckpoint:
    """The newest usable checkpoint of a folder."""

    path: Path
    snapshot: Snapshot
    refused: tuple[tuple[Path, str], ...] = ()
    """Newer ones that are not usable, newest first, each with the reason."""


def folder_of(parent: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step in `parent`."""
    return parent / f"step-{step}"


def free_folder(parent: Path, step: int) -> Path:
    """Return the path at which this run can write the checkpoint of a step.

    That is ``step-N``, or ``step-N.2`` if ``step-N`` exists and is not this run's.

    Raises:
        OSError: `parent` cannot be read or written.
    """
    own, path, count = OwnedFolders.claim(parent), folder_of(parent, step), 1
    while lies_at(path) and own.not_owned(path.name) is not None:
        count += 1
        path = parent / f"step-{step}.{count}"
    return path


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint; None if it is no such name.

    >>> [step_of(name) for name in ("step-7", "step-7.2", "step-007", "left-step-7")]
    [7, 7, None, None]
    """
    match = _NAME.fullmatch(name)
    return int(match["step"]) if match else None


def checkpoints_in(parent: Path) -> list[Path]:
    """Return the paths in `parent` with the name of a checkpoint, newest first.

    Raises:
        CheckpointError: `parent` cannot be read.
    """
    try:
        found = [(match, path) for path in parent.iterdir() if (match := _NAME.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"the checkpoints in {parent} cannot be read: {error.strerror}.") from error
    found.sort(key=lambda one: (int(one[0]["step"]), int(one[0]["count"] or 1)), reverse=True)
    return [path for _, path in found]


def steps_in(parent: Path) -> list[int]:
    """Return the steps of `checkpoints_in`, newest first.

    Raises:
        CheckpointError: `parent` cannot be read.
    """
    steps = (step_of(path.name) for path in checkpoints_in(parent))
    return list(dict.fromkeys(step for step in steps if step is not None))


def newest_valid(folder: Path) -> SelectedCheckpoint:
    """Return the newest usable checkpoint in `folder`, or `folder` itself if it is one, verified.

    Raises:
        CheckpointError: none is usable; lists each with its reason.
    """
    _restore_all(folder)
    if _is_single(folder):
        return SelectedCheckpoint(folder, read(folder))
    refused: list[tuple[Path, str]] = []
    for path in checkpoints_in(folder):
        found = _read_as_named(path)
        if isinstance(found, Snapshot):
            return SelectedCheckpoint(path, found, tuple(refused))
        refused.append((path, found))
    if not refused:
        raise CheckpointError(f"there is no checkpoint in {folder}: no folder is called step-N.")
    # The folder is named once: a line with its path before each reason would be cut where it is shown.
    reasons = " ".join(f"{path.name}: {reason.replace(f'{folder}{os.sep}', '')}" for path, reason in refused)
    raise CheckpointError(f"no checkpoint in {folder} can be used. {reasons}")


def is_bare(folder: Path) -> bool:
    """Return whether `folder` contains no checkpoint, usable or not, and is none itself."""
    _restore_all(folder)
    return not steps_in(folder) and not (lies_at(folder) and _is_single(folder))


def _is_single(folder: Path) -> bool:
    """Return whether `folder` is one checkpoint, judged by its manifest, or else by its name."""
    if lies_at(folder / MANIFEST):
        return True
    named = _NAME.fullmatch(folder.name) or _SET_ASIDE.fullmatch(folder.name)
    return named is not None and not steps_in(folder)


def _restore_all(folder: Path) -> None:
    """Rename checkpoints whose replacement was interrupted: `folder` itself, or those in it."""
    if _NAME.fullmatch(folder.name) and not lies_at(folder):
        restore(folder.parent, name=folder.name)
    restore(folder)


def _read_as_named(path: Path) -> Snapshot | str:
    """Return the contents of a checkpoint, or why it cannot be used."""
    try:
        snapshot = read(path)
    except CheckpointError as error:
        return str(error)
    step = snapshot.state.get("step")
    if type(step) is not int:
        return f"{path / STATE} has the step {step!r:.40}, which is not an integer."
    if step_of(path.name) != step:  # names decide which one is the newest
        return f"{path} contains step {step}: it was renamed. Restore its name."
    return snapshot
