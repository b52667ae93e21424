"""Writes checkpoints in a background thread while the training continues."""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.atomic_folders import make, tidy
from samestep.training.checkpoint.newest import folder_of, free_folder
from samestep.training.checkpoint.retention import Retention, prune
from samestep.training.checkpoint.save import write_staged
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.checkpoint.staging import Stage

_NICENESS = 10
"""Niceness of the writing thread, below the training's priority. At the lowest priority it could be suspended
while it holds the GIL, and the training would wait for it."""


class Writer:
    """A background writer for the checkpoints of one run, one at a time; used on one rank.

    `save` copies the state and returns. A thread then hashes and writes it, waits for the disk, renames the
    folder, and deletes old checkpoints. The interpreter waits for that thread at its end, so a script that
    ends or fails after `save` still has its checkpoint. A failed write leaves the earlier checkpoints as they
    are and sets `failure`; the next `save` tries again. A failed deletion of old ones sets `warning`.

    Args:
        folder: of the ``step-N`` folders; made if missing, and cleaned of a killed writer's drafts.
        keep: the retention rule.

    Raises:
        CheckpointError: the folder cannot be made.
    """

    def __init__(self, folder: Path, keep: Retention | None = None) -> None:
        self.folder = folder
        self.keep = Retention() if keep is None else keep
        self.newest: Path | None = None
        """The newest checkpoint that this writer has completed."""
        self.failure: str | None = None
        """Why the last write failed; None if it succeeded."""
        self.warning: str | None = None
        """A description of the folders that were not deleted or belong to others; None if there are none."""
        self._stage = Stage()
        self._thread: threading.Thread | None = None
        try:
            make(folder)
            self.warning = tidy(folder)
        except OSError as error:
            raise CheckpointError(f"cannot write checkpoints to {folder}: {error.strerror}.") from error

    def save(
        self,
        *,
        step: int,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Any],
        state: Mapping[str, Any],
        average: Mapping[str, Tensor] | None = None,
        score: float | None = None,
    ) -> None:
        """Copy the current state of a run, and start to write it as ``step-N``.

        Waits for the previous checkpoint if that is still being written. Replaces one of the same step.

        Args:
            step: number of completed steps.
            model: see `Snapshot`, as for `optimizer`, `state` and `average`.
            optimizer: state dicts and other tensors and plain values.
            state: JSON values; `step` and `score` are added.
            average: averaged weights.
            score: for `Retention.best`; higher is better.

        Raises:
            CheckpointError: it contains something that cannot be saved.
        """
        self.wait()
        everything = {**state, "step": step} | ({} if score is None else {"score": score})
        snapshot = self._stage.take(Snapshot(model, optimizer, everything, average))
        self._thread = threading.Thread(target=self._write, args=(snapshot, step), name=f"checkpoint {step}")
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

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, snapshot: Snapshot, step: int) -> None:
        """Write, commit, then prune; store errors instead of raising them, because this is a thread."""
        _lower_priority()
        folder = folder_of(self.folder, step)
        try:
            folder = free_folder(self.folder, step)
            self._stage.settle()
            self.newest = write_staged(snapshot, folder)
            self.failure = None
        except CheckpointError as error:
            self.failure = str(error)
            return
        except Exception as error:  # noqa: BLE001 - no failed checkpoint ends a training
            self.failure = f"cannot write the checkpoint {folder}: {type(error).__name__}: {error}."
            return
        try:
            self.warning = prune(self.folder, self.keep, newest=step)
        except Exception as error:  # noqa: BLE001 - the new one is on disk
            self.warning = f"old checkpoints in {self.folder} cannot be listed: {error}."


def _lower_priority() -> None:
    """Lower the priority of this thread, on systems with a priority per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
