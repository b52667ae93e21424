"""Writing checkpoints while the training goes on."""

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
from samestep.checkpoint.choose import folder_of, free_folder
from samestep.checkpoint.files import make, tidy
from samestep.checkpoint.retain import Keep, prune
from samestep.checkpoint.save import write_staged
from samestep.checkpoint.snapshot import Snapshot
from samestep.checkpoint.stage import Stage

_NICENESS = 10
"""Of the writing thread: it takes the time that the training leaves. At the lowest priority it might not run
for long while it holds the interpreter's lock, and the training would wait for it."""


class Writer:
    """Writes the checkpoints of one run, one at a time, in the background; used on one rank.

    `save` copies the state and returns; a thread hashes it, writes it, waits for the disk, gives the folder
    its name, and deletes what need not stay. Each checkpoint has a thread of its own, which the
    interpreter waits for: a script that ends or fails after `save` still has its checkpoint. A write that
    fails leaves the checkpoints before it as they are; `failure` tells, and the next one is tried. One that
    could be written, but not make room of an old one, is told by `warning`.

    Args:
        folder: where the ``step-N`` go; made if it is not there, and cleared of what a killed writer left.
        keep: which ones stay.

    Raises:
        CheckpointError: the folder cannot be made.
    """

    def __init__(self, folder: Path, keep: Keep | None = None) -> None:
        self.folder = folder
        self.keep = Keep() if keep is None else keep
        self.newest: Path | None = None
        """The newest checkpoint that this writer has completed."""
        self.failure: str | None = None
        """Why the write that ended last has failed; None where it did not."""
        self.warning: str | None = None
        """What was left alone though it has a name of ours, or could not be deleted, and why: no failure."""
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
        """Copy the state of a run as it is now, and begin to write it as ``step-N``.

        Waits for the checkpoint before, if that is still being written. One of the same step is replaced.

        Args:
            step: steps done.
            model: see `Snapshot`, as are `optimizer`, `state` and `average`.
            optimizer: state dicts and other tensors and plain values.
            state: what JSON can hold; `step` and `score` are added.
            average: averaged weights.
            score: the higher, the better; for `Keep.best`.

        Raises:
            CheckpointError: there is something in it that cannot be saved.
        """
        self.wait()
        told = {**state, "step": step} | ({} if score is None else {"score": score})
        snapshot = self._stage.take(Snapshot(model, optimizer, told, average))
        self._thread = threading.Thread(target=self._write, args=(snapshot, step), name=f"checkpoint {step}")
        self._thread.start()

    def wait(self) -> None:
        """Return once nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the last checkpoint, and give back the memory for copies."""
        self.wait()
        self._stage = Stage()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, snapshot: Snapshot, step: int) -> None:
        """Write, commit, then prune; what goes wrong is told, not raised: nobody would hear it."""
        _step_back()
        folder = folder_of(self.folder, step)
        try:
            folder = free_folder(self.folder, step)
            self._stage.settle()
            self.newest = write_staged(snapshot, folder)
            self.failure = None
        except CheckpointError as error:
            self.failure = str(error)
            return
        except Exception as error:  # noqa: BLE001 - the training is worth more than this checkpoint
            self.failure = f"cannot write the checkpoint {folder}: {type(error).__name__}: {error}."
            return
        try:
            self.warning = prune(self.folder, self.keep, newest=step)
        except Exception as error:  # noqa: BLE001 - the new one is on disk: nothing here undoes that
            self.warning = f"old checkpoints in {self.folder} cannot be looked through: {error}."


def _step_back() -> None:
    """Lower the priority of this thread, where the system has one for each."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
