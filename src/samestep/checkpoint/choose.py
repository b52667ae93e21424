"""Which checkpoint to go on from: the newest that is whole."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import CheckpointError
from samestep.base.regular_files import lies_at
from samestep.checkpoint.files import restore
from samestep.checkpoint.layout import MANIFEST, STATE
from samestep.checkpoint.own import OwnFolders
from samestep.checkpoint.read import read
from samestep.checkpoint.snapshot import Snapshot

_NAME = re.compile(r"step-(?P<step>0|[1-9][0-9]*)(?:\.(?P<count>[1-9][0-9]*))?")
_SET_ASIDE = re.compile(r"left-step-\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A checkpoint to go on from."""

    path: Path
    snapshot: Snapshot
    refused: tuple[tuple[Path, str], ...] = ()
    """Newer ones that could not be used, the newest first, each with the reason."""


def folder_of(parent: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies among others."""
    return parent / f"step-{step}"


def free_folder(parent: Path, step: int) -> Path:
    """Return where this run may write the checkpoint of a step.

    That is ``step-N``, or ``step-N.2`` where something is in its place that this run has not made.

    Raises:
        OSError: `parent` cannot be read or written.
    """
    own, path, count = OwnFolders.claim(parent), folder_of(parent, step), 1
    while lies_at(path) and own.foreign(path.name) is not None:
        count += 1
        path = parent / f"step-{step}.{count}"
    return path


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint; None for a name that samestep does not give.

    >>> [step_of(name) for name in ("step-7", "step-7.2", "step-007", "left-step-7")]
    [7, 7, None, None]
    """
    match = _NAME.fullmatch(name)
    return int(match["step"]) if match else None


def checkpoints_in(parent: Path) -> list[Path]:
    """Return what `parent` holds that is called a checkpoint, the newest first.

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
    """Return the steps of which `parent` holds something that is called a checkpoint, the newest first.

    Raises:
        CheckpointError: `parent` cannot be read.
    """
    steps = (step_of(path.name) for path in checkpoints_in(parent))
    return list(dict.fromkeys(step for step in steps if step is not None))


def newest_valid(folder: Path) -> Chosen:
    """Return the newest usable checkpoint in `folder`, or the checkpoint that `folder` is, verified.

    Raises:
        CheckpointError: none is usable; tells each with its reason.
    """
    _restore_all(folder)
    if _is_single(folder):
        return Chosen(folder, read(folder))
    refused: list[tuple[Path, str]] = []
    for path in checkpoints_in(folder):
        found = _read_as_named(path)
        if isinstance(found, Snapshot):
            return Chosen(path, found, tuple(refused))
        refused.append((path, found))
    if not refused:
        raise CheckpointError(f"there is no checkpoint in {folder}: no folder is called step-N.")
    # The folder is named once: a line with its path before each reason would be cut where it is shown.
    reasons = " ".join(f"{path.name}: {reason.replace(f'{folder}{os.sep}', '')}" for path, reason in refused)
    raise CheckpointError(f"no checkpoint in {folder} can be used. {reasons}")


def is_bare(folder: Path) -> bool:
    """Return whether there is no checkpoint yet in `folder`, whole or damaged, and it is none itself."""
    _restore_all(folder)
    return not steps_in(folder) and not (lies_at(folder) and _is_single(folder))


def _is_single(folder: Path) -> bool:
    """Whether `folder` is to be one checkpoint, not a place of several: by its manifest, or else its name."""
    if lies_at(folder / MANIFEST):
        return True
    named = _NAME.fullmatch(folder.name) or _SET_ASIDE.fullmatch(folder.name)
    return named is not None and not steps_in(folder)


def _restore_all(folder: Path) -> None:
    """Give what was being replaced its name again: `folder` itself, or one in it."""
    if _NAME.fullmatch(folder.name) and not lies_at(folder):
        restore(folder.parent, name=folder.name)
    restore(folder)


def _read_as_named(path: Path) -> Snapshot | str:
    """Return what a checkpoint among others holds, or why it cannot be used."""
    try:
        snapshot = read(path)
    except CheckpointError as error:
        return str(error)
    step = snapshot.state.get("step")
    if type(step) is not int:
        return f"{path / STATE} has {step!r:.40} as its step, which is no whole number."
    if step_of(path.name) != step:  # the newest is chosen by name
        return f"{path} holds step {step}: it was renamed. Give it its own name again."
    return snapshot
