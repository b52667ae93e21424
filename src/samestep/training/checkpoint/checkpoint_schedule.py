"""Decides when checkpoints are written, and writes them in a background thread on rank 0."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from samestep.base.errors import CheckpointError
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_folders import make, tidy
from samestep.training.checkpoint.newest import folder_of, free_folder
from samestep.training.checkpoint.random_state import gather_random_state
from samestep.training.checkpoint.retention import Retention, prune
from samestep.training.checkpoint.save import write_staged
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.checkpoint.staging import Stage
from samestep.training.settings import RunOptions

_NICENESS = 10
"""Niceness of the writing thread, below the training's priority. At the lowest priority it could be suspended
while it holds the GIL, and the training would wait for it."""


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
        step = snapshot.state["step"]
        if score is not None:
            snapshot = replace(snapshot, state={**snapshot.state, "score": score})
        staged = self._stage.take(snapshot)
        self._thread = threading.Thread(target=self._write, args=(staged, step), name=f"checkpoint {step}")
        self._thread.start()

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
