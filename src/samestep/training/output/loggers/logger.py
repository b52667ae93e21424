"""Defines the interface of loggers, and names the figures of steps and evaluations for them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from samestep.observe.clock.phase_clock import PHASES
from samestep.training.output.result import Result


class Logger(Protocol):
    """A logger on rank 0; if a method raises, the training continues without the logger."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log some of the rows of ``metrics.jsonl``, in order, including the first step of a start."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Log a row of ``evaluations.jsonl``."""

    def close(self, result: Result | None) -> None:
        """Flush and close; `result` is None for an unfinished run, which can be resumed."""


def step_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a step: ``train/loss`` etc., and ``phase/forward`` etc. in seconds."""
    return {
        f"{'phase' if name in PHASES else 'train'}/{name}": value
        for name, value in row.items()
        if name != "step"
    }


def evaluation_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation: ``test/accuracy`` etc., and other metrics by their names."""
    plain = {name: value for name, value in row.items() if name not in ("step", "metrics")}
    everything = {**plain, **row.get("metrics", {})}
    return {f"test/{name}": value for name, value in everything.items() if value is not None}
