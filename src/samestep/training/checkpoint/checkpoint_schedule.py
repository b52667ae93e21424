"""Decides when checkpoints are written and how long they stay; a thread on rank 0 writes and deletes them."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.base.errors import CheckpointError, UsageError
from samestep.base.polling import holds_within
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_folders import OwnedFolders, delete, make, tidy
from samestep.training.checkpoint.newest import checkpoints_in, folder_of, free_folder
from samestep.training.checkpoint.random_state import gather_random_state
from samestep.training.checkpoint.read import read_state
from samestep.training.checkpoint.save import Stage, write_staged
from samestep.training.checkpoint.snapshot import MANIFEST, MARK, Snapshot, read_manifest
from samestep.training.settings import RunOptions


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
    run_folders = OwnedFolders.claim(folder)
    scores: dict[int, float | None] = {}
    paths: dict[int, Path] = {}
    skipped = []
    for step, path in reversed(checkpoints_in(folder)):
        name = path.name
        if (why := run_folders.not_owned(name)) is not None:
            skipped.append(f"{name} ({why})")
            continue
        with suppress(CheckpointError):
            if run_folders.files_in(name) == read_manifest(folder / name).keys() | {MANIFEST, MARK}:
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


_NICENESS = 10
"""Niceness of the writing thread, below the training's priority. At the lowest priority it could be suspended
while it holds the GIL, and the training would wait for it."""
_BEGINS_S = 2.0
"""Seconds in which a thread begins that an interrupted call has started, also on a busy machine."""


class Writer:
    """A background writer for the checkpoints of one run, one at a time; used on one rank.

    `save` copies the state and returns. A thread then hashes and writes it, waits for the disk, renames the
    folder, and deletes old checkpoints. The interpreter waits for that thread at its end, so a script that
    ends or fails after `save` still has its checkpoint. A failed write leaves the earlier checkpoints as they
    are and sets `failure`; the next `save` tries again. A failed deletion of old ones sets `warning`. The
    folder is made if it is missing, and cleaned of a killed writer's drafts.

    Raises:
        CheckpointError: the folder cannot be made.
    """

    def __init__(self, folder: Path, keep: Retention) -> None:
        self._folder = folder
        self._keep = keep
        self.failure: str | None = None  # why the last write failed; None if it succeeded
        self.warning: str | None = None
        """A description of the folders that were not deleted or belong to others; None if there are none."""
        self._stage = Stage()
        self._thread: threading.Thread | None = None
        self._has_begun = False
        try:
            make(folder)
            self.warning = tidy(folder)
        except OSError as error:
            raise CheckpointError(f"cannot write checkpoints to {folder}: {error.strerror}.") from error

    def save(self, snapshot: Snapshot, *, score: float | None = None) -> None:
        """Copy the current state of a run, and start to write it as ``step-N``.

        Waits for the previous checkpoint if that is still being written. Replaces one of the same step. The
        state has the number of completed steps; `score` is for `Retention.best`, and higher is better.

        Raises:
            CheckpointError: it contains something that cannot be saved.
        """
        self.wait()
        self._has_begun = False
        step = snapshot.state["step"]
        if score is not None:
            snapshot = replace(snapshot, state={**snapshot.state, "score": score})
        staged = self._stage.take(snapshot)
        self._thread = threading.Thread(target=self._write, args=(staged, step), name=f"checkpoint {step}")
        try:
            self._thread.start()
        except KeyboardInterrupt:  # the thread may have been started, and begins its work in a moment
            if not holds_within(lambda: self._has_begun, _BEGINS_S):
                self._thread = None
            raise

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the last checkpoint, and free the memory of the copies."""
        self.wait()
        self._stage = Stage()

    def _write(self, snapshot: Snapshot, step: int) -> None:
        """Write, commit, then prune; store errors instead of raising them, because this is a thread."""
        self._has_begun = True
        _lower_priority()
        folder = folder_of(self._folder, step)
        try:
            folder = free_folder(self._folder, step)
            self._stage.settle()
            write_staged(snapshot, folder)
            self.failure = None
        except CheckpointError as error:
            self.failure = str(error)
            return
        except Exception as error:  # noqa: BLE001 - no failed checkpoint ends a training
            self.failure = f"cannot write the checkpoint {folder}: {type(error).__name__}: {error}."
            return
        try:
            self.warning = prune(self._folder, self._keep, newest=step)
        except Exception as error:  # noqa: BLE001 - the new one is on disk
            self.warning = f"old checkpoints in {self._folder} cannot be listed: {error}."


def _lower_priority() -> None:
    """Lower the priority of this thread, on systems with a priority per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class CheckpointManager:
    """The checkpoint schedule of one training; rank 0 writes, all ranks construct it and call `save`.

    With None as the folder, none are written. `report` receives one line about a checkpoint that cannot be
    written (the training continues with the previous one), and about folders that cannot be deleted or are
    not this run's.

    Raises:
        CheckpointError: the folder cannot be made; on all ranks.
    """

    def __init__(
        self,
        world: World,
        options: RunOptions,
        *,
        folder: Path | None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._world = world
        self._options = options
        self._enabled = folder is not None
        self._report = report
        self._reported: set[str] = set()
        self._latest = time.monotonic()
        self._writer: Writer | None = None
        if folder is not None:
            world.on_main(lambda: self._open(folder))

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step`, by the number of steps alone."""
        every = self._options.checkpoint_steps
        return self._enabled and every is not None and step % every == 0

    @property
    def late(self) -> bool:
        """Whether a checkpoint is due by rank 0's clock; always false on other ranks."""
        minutes = self._options.checkpoint_minutes
        age_s = time.monotonic() - self._latest
        return self._writer is not None and minutes is not None and age_s >= 60 * minutes

    def save(self, snapshot: Snapshot, *, score: float | None = None) -> None:
        """Copy `snapshot` and the random state of all ranks, and start to write them; called by all ranks."""
        if not self._enabled:
            return
        random = gather_random_state(self._world, step=snapshot.state["step"])
        self._latest = time.monotonic()
        if self._writer is not None:
            whole = replace(snapshot, optimizer={**snapshot.optimizer, "random": random})
            self._writer.save(whole, score=score)
            self._report_troubles(self._writer.failure, self._writer.warning)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; called by all ranks.

        Raises:
            CheckpointError: it could not be written; on all ranks.
        """
        self._world.on_main(self._finish)

    def close(self) -> None:
        """Finish the write in progress and release the writer."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, folder: Path) -> None:
        self._writer = Writer(folder, keep=Retention(last=self._options.keep, best=True))
        self._report_troubles(self._writer.warning)

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.wait()
        self._report_troubles(self._writer.warning)
        if self._writer.failure is not None:
            raise CheckpointError(self._writer.failure)

    def _report_troubles(self, *troubles: str | None) -> None:
        """Report each trouble once for as long as it lasts."""
        present = {trouble for trouble in troubles if trouble is not None}
        for trouble in sorted(present - self._reported):
            self._report(trouble)
        self._reported = present
