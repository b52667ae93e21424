"""Decides when checkpoints are written and writes them in the background on rank 0."""

import time
from collections.abc import Callable
from pathlib import Path

from samestep.base.errors import CheckpointError
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.background import Writer
from samestep.training.checkpoint.random_state import gather_random_state
from samestep.training.checkpoint.retention import Retention
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.settings.run_options import RunOptions


class CheckpointManager:
    """The checkpoint schedule of one training; rank 0 writes, all ranks construct it and call `save`.

    Args:
        world: whose random states are part of a checkpoint.
        options: the schedule and how many checkpoints stay.
        folder: of the checkpoints; None writes none.
        report: receives one line about a checkpoint that cannot be written (the training continues with the
            previous one), and about folders that cannot be deleted or are not this run's.

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
            self._writer.save(
                step=snapshot.state["step"],
                model=snapshot.model,
                optimizer={**snapshot.optimizer, "random": random},
                state=snapshot.state,
                average=snapshot.average,
                score=score,
            )
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
