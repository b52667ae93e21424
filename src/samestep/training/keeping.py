"""When checkpoints are written, and that all ranks agree on it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.checkpoint.background import Writer
from samestep.checkpoint.random_state import gather_random_state
from samestep.checkpoint.retain import Keep
from samestep.training.conduct import Conduct
from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a training between two steps; tensors are still those that train."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    state: Mapping[str, Any]
    average: Mapping[str, Tensor] | None = None


class Keeper:
    """Writes checkpoints on rank 0, at steps that all ranks know; made by all of them.

    Args:
        world: whose random states belong to a checkpoint.
        conduct: when, and how many are kept.
        folder: where they go; None keeps nothing.
        tell: told of a checkpoint that could not be written; the training goes on, and the one before stays.
            So of old ones that could not be deleted, and of what was left alone.

    Raises:
        CheckpointError: the folder cannot be made; on all ranks.
    """

    def __init__(
        self,
        world: World,
        conduct: Conduct,
        *,
        folder: Path | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._world = world
        self._conduct = conduct
        self._keeps = folder is not None
        self._tell = tell
        self._told: set[str] = set()
        self._latest = time.monotonic()
        self._writer: Writer | None = None
        if folder is not None:
            world.on_main(lambda: self._open(folder))

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`, by the number of steps alone."""
        every = self._conduct.checkpoint_steps
        return self._keeps and every is not None and step % every == 0

    @property
    def late(self) -> bool:
        """Whether this rank's clock says that a checkpoint is due; rank 0's is asked."""
        minutes = self._conduct.checkpoint_minutes
        return self._writer is not None and minutes is not None and self._age_s >= 60 * minutes

    def save(self, moment: Moment, *, score: float | None = None) -> None:
        """Take a checkpoint; called by all ranks, and returns once it is copied, before it is written."""
        if not self._keeps:
            return
        random = gather_random_state(self._world, step=moment.state["step"])
        self._latest = time.monotonic()
        if self._writer is not None:
            self._writer.save(
                step=moment.state["step"],
                model=moment.model,
                optimizer={**moment.optimizer, "random": random},
                state=moment.state,
                average=moment.average,
                score=score,
            )
            self._tell_troubles(self._writer.failure, self._writer.warning)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk; called by all ranks.

        Raises:
            CheckpointError: it could not be written; on all ranks.
        """
        self._world.on_main(self._finish)

    def close(self) -> None:
        """Let go of the writer; what it is writing is finished first."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._latest

    def _open(self, folder: Path) -> None:
        self._writer = Writer(folder, keep=Keep(last=self._conduct.keep, best=True))
        self._tell_troubles(self._writer.warning)

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.wait()
        self._tell_troubles(self._writer.warning)
        if self._writer.failure is not None:
            raise CheckpointError(self._writer.failure)

    def _tell_troubles(self, *troubles: str | None) -> None:
        """Tell each once, for as long as it lasts."""
        present = {trouble for trouble in troubles if trouble is not None}
        for trouble in sorted(present - self._told):
            self._tell(trouble)
        self._told = present
