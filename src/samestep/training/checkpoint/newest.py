"""Finds the newest usable checkpoint in a folder, broadcasts it to all ranks, and renames abandoned ones."""

import itertools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.base.regular_files import lies_at
from samestep.hooks.tensor_tree import leaves, mapped
from samestep.parallel.gradients.agreement import broadcast_tensors
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_folders import OwnedFolders, flush, restore
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.snapshot import MANIFEST, STATE, Snapshot

_NAME = re.compile(r"step-(?P<step>0|[1-9][0-9]*)(?:\.(?P<count>[1-9][0-9]*))?")
_TRIES = 100
"""The most times that a folder is read in which a writer replaces all checkpoints meanwhile: a guess."""
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
    run_folders = OwnedFolders.claim(parent)
    name = free_name(
        folder_of(parent, step).name,
        lambda name: lies_at(parent / name) and run_folders.not_owned(name) is not None,
    )
    return parent / name


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """Return the first of `name`, ``name.2``, ``name.3``, ... that is not taken."""
    names = itertools.chain([name], (f"{name}.{count}" for count in itertools.count(2)))
    return next(candidate for candidate in names if not is_taken(candidate))


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint; None if it is no such name.

    >>> [step_of(name) for name in ("step-7", "step-7.2", "step-007", "left-step-7")]
    [7, 7, None, None]
    """
    match = _NAME.fullmatch(name)
    return int(match["step"]) if match else None


def checkpoints_in(parent: Path) -> list[tuple[int, Path]]:
    """Return step and path of everything in `parent` with the name of a checkpoint, newest first.

    Raises:
        CheckpointError: `parent` cannot be read.
    """
    try:
        matches = [(match, path) for path in parent.iterdir() if (match := _NAME.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"the checkpoints in {parent} cannot be read: {error.strerror}.") from error
    matches.sort(key=lambda pair: (int(pair[0]["step"]), int(pair[0]["count"] or 1)), reverse=True)
    return [(int(match["step"]), path) for match, path in matches]


def newest_valid(folder: Path) -> SelectedCheckpoint:
    """Return the newest usable checkpoint in `folder`, or `folder` itself if it is one, verified.

    A writer may replace and delete checkpoints meanwhile: if none is usable, and there are others now than
    before, it is tried again.

    Raises:
        CheckpointError: none is usable; lists each with its reason.
    """
    for tries_left in reversed(range(_TRIES)):
        before = _identities(folder)
        try:
            return _newest_valid(folder)
        except CheckpointError:
            if _identities(folder) == before or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _identities(folder: Path) -> set[tuple[str, int]]:
    """Return the name and the inode of each entry of a folder, and its own inode without a name."""
    inodes: set[tuple[str, int]] = set()
    with suppress(OSError):
        inodes.add(("", folder.stat().st_ino))
        with os.scandir(folder) as entries:
            inodes.update((entry.name, entry.inode()) for entry in entries)
    return inodes


def _newest_valid(folder: Path) -> SelectedCheckpoint:
    _restore_all(folder)
    if _is_single(folder):
        return SelectedCheckpoint(folder, read(folder))
    refused: list[tuple[Path, str]] = []
    for step, path in checkpoints_in(folder):
        contents = _read_as_named(path, step)
        if isinstance(contents, Snapshot):
            return SelectedCheckpoint(path, contents, tuple(refused))
        refused.append((path, contents))
    if not refused:
        raise CheckpointError(f"there is no checkpoint in {folder}: no folder is called step-N.")
    # The folder is named once: a line with its path before each reason would be cut where it is shown.
    reasons = " ".join(f"{path.name}: {reason.replace(f'{folder}{os.sep}', '')}" for path, reason in refused)
    raise CheckpointError(f"no checkpoint in {folder} can be used. {reasons}")


def is_bare(folder: Path) -> bool:
    """Return whether `folder` contains no checkpoint, usable or not, and is none itself."""
    _restore_all(folder)
    return not checkpoints_in(folder) and not (lies_at(folder) and _is_single(folder))


def _is_single(folder: Path) -> bool:
    """Return whether `folder` is one checkpoint, judged by its manifest, or else by its name."""
    if lies_at(folder / MANIFEST):
        return True
    named = _NAME.fullmatch(folder.name) or _SET_ASIDE.fullmatch(folder.name)
    return named is not None and not checkpoints_in(folder)


def _restore_all(folder: Path) -> None:
    """Rename checkpoints whose replacement was interrupted: `folder` itself, or those in it."""
    if _NAME.fullmatch(folder.name) and not lies_at(folder):
        restore(folder.parent, name=folder.name)
    restore(folder)


def _read_as_named(path: Path, named: int) -> Snapshot | str:
    """Return the contents of a checkpoint, or why it cannot be used; `named` is the step in its name."""
    try:
        snapshot = read(path)
    except CheckpointError as error:
        return str(error)
    step = snapshot.state.get("step")
    if type(step) is not int:
        return f"{path / STATE} has the step {step!r:.40}, which is not an integer."
    if step != named:  # names decide which one is the newest
        return f"{path} contains step {step}: it was renamed. Restore its name."
    return snapshot


def choose_on_all(world: World, folder: Path, *, missing_ok: bool = False) -> SelectedCheckpoint | None:
    """Return `newest_valid` of `folder` on every rank; called by all ranks, and read by rank 0.

    Only rank 0 needs access to the folder. With `missing_ok`, it returns None if no folder has the name of a
    checkpoint.
    """
    read_here: list[Snapshot] = []

    def choose() -> tuple[Path, tuple[tuple[Path, str], ...]] | None:
        if missing_ok and is_bare(folder):
            return None
        chosen = newest_valid(folder)
        read_here.append(chosen.snapshot)
        return chosen.path, chosen.refused

    selected = world.on_main(choose)
    snapshot = broadcast_snapshot(world, next(iter(read_here), None))
    return (
        None
        if selected is None or snapshot is None
        else SelectedCheckpoint(selected[0], snapshot, selected[1])
    )


def broadcast_snapshot(world: World, snapshot: Snapshot | None) -> Snapshot | None:
    """Return rank 0's snapshot on every rank; called by all ranks."""
    if world.place.size == 1:
        return snapshot
    parts = None
    if snapshot is not None and world.place.is_main:
        parts = [snapshot.model, snapshot.optimizer, snapshot.state, snapshot.average]
    # `empty_like` keeps the strides of a dense tensor, and returns dense ones otherwise.
    specs = mapped(parts, lambda _, tensor: torch.empty_like(tensor, device="meta"))
    specs = world.broadcast_object(specs)
    if specs is None:
        return None
    received = parts if parts is not None else mapped(specs, _empty)
    broadcast_tensors(world, [tensor for _, tensor in leaves(received)])
    return snapshot if parts is not None else Snapshot(*received)


def _empty(_: object, spec: Tensor) -> Tensor:
    return torch.empty_strided(spec.shape, spec.stride(), dtype=spec.dtype, device="cpu")


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
        run_folders = OwnedFolders.claim(folder)
        for name in later:
            if (why := run_folders.not_owned(name)) is not None:
                skipped.append(f"{name} ({why})")
                continue
            moved.append(folder / free_name(f"left-{name}", lambda free: lies_at(folder / free)))
            run_folders.rename(name, moved[-1].name)
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
