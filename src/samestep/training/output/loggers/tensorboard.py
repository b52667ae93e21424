"""Writes TensorBoard event files to the run folder, for ``--logger tensorboard``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from torch.utils.tensorboard import SummaryWriter

from samestep.training.output.loggers.logger import evaluation_figures, step_figures
from samestep.training.output.result import Result


class TensorBoard:
    """A logger that writes event files, flushed after every call."""

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

    def close(self, result: Result | None) -> None:  # noqa: ARG002 - the last evaluation has these figures
        """See `Logger.close`."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._writer is None:
            # A killed run has logged steps after its last checkpoint, which are repeated.
            self._writer = SummaryWriter(self._folder, purge_step=step)
            if step == 1:
                text = tomli_w.dumps(dict(self._config))
                self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()


def open_logger(run_folder: Path, config: Mapping[str, Any], report: Callable[[str], None]) -> TensorBoard:  # noqa: ARG001 - nothing to report
    """Return a logger that writes its first file with the first row."""
    return TensorBoard(run_folder / "tensorboard", config)
