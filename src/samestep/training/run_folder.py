"""The folder of one run.

::

    runs/NAME/
      config.toml     the resolved settings; written first
      metrics.jsonl   one object per step
      checkpoints/    one folder each
      result.json     written last: a run without one did not finish
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import tomli_w
from torch import nn

from samestep.base.errors import Error, UsageError
from samestep.base.record import json_line, provenance, write_json
from samestep.checkpoint.save import save
from samestep.sharding.position import Position
from samestep.training.result import Result

_OURS = {"config.toml", "metrics.jsonl", "result.json", "checkpoints"}


class Sink(Protocol):
    """Takes what a run produces; rank 0's keeps it, the others' drop it."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take one row per step."""

    def finish(self, model: nn.Module, result: Result, position: Position) -> None:
        """Take the trained model, the result and where the training stands in its data; the run is over."""


class Nowhere:
    """Keeps nothing: the sink of every rank but the first."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.steps`."""

    def finish(self, model: nn.Module, result: Result, position: Position) -> None:
        """See `Sink.finish`."""


class RunFolder:
    """The files of one run.

    Args:
        path: a folder that `prepare` has accepted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def prepare(path: Path) -> None:
        """Make the folder and show that it can be written, before any work starts.

        Raises:
            UsageError: the folder cannot be made or written, or belongs to another run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            taken = sorted(_OURS & {entry.name for entry in path.iterdir()})
        except OSError as error:
            raise UsageError(
                f"cannot write to the output folder {path}: {error.strerror}. Choose another --out."
            ) from None
        if taken:
            raise UsageError(
                f"{path} already holds a run ({', '.join(taken)}). Choose another --out, or move it away."
            )

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Store the resolved settings."""
        (self.path / "config.toml").write_text(tomli_w.dumps(dict(config)), encoding="utf-8")

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line per step to ``metrics.jsonl``."""
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.writelines(json_line(row) for row in rows)
        except OSError as error:
            raise Error(f"cannot write to {path}: {error.strerror}. The run ends here.") from error

    def finish(self, model: nn.Module, result: Result, position: Position) -> None:
        """Write the final checkpoint, then ``result.json``."""
        checkpoints = self.path / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        save(
            model,
            checkpoints / f"step-{result.steps}",
            state={"step": result.steps, **asdict(position), "weights_sha256": result.weights_sha256},
        )
        write_json(self.path / "result.json", {**result.as_dict(), "provenance": provenance()})
