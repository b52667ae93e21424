"""``--logger tensorboard``: event files in the run folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from torch.utils.tensorboard import SummaryWriter

from samestep.training.loggers.logger import evaluation_figures, step_figures
from samestep.training.result import Result


class TensorBoard:
    """Writes event files; what they hold is on disk when a call returns.

    Args:
        folder: where they go.
        config: shown as text.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._config = config
        self._writer: SummaryWriter | None = None

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Logger.steps`."""
        for row in rows:
            self._write(row["step"], step_figures(row))
        self._flush()

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Logger.evaluation`."""
        self._write(row["step"], evaluation_figures(row))
        self._flush()

    def close(self, result: Result | None) -> None:  # noqa: ARG002 - the last evaluation has said it
        """See `Logger.close`."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._writer is None:
            # A run that was killed has gone on after its last checkpoint: those steps are taken again.
            self._writer = SummaryWriter(self._folder, purge_step=step)
            if step == 1:
                text = tomli_w.dumps(dict(self._config))
                self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()


def open_logger(run_folder: Path, config: Mapping[str, Any], tell: Callable[[str], None]) -> TensorBoard:  # noqa: ARG001 - there is nothing to tell
    """Return a logger that begins to write with the first row it is given."""
    return TensorBoard(run_folder / "tensorboard", config)
