"""What a logger is, and what it is given: figures by name."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from samestep.measure.clock import PHASES
from samestep.training.result import Result


class Logger(Protocol):
    """Shows on rank 0 how a training goes; whatever it raises, the training goes on without it."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take some of the rows of ``metrics.jsonl``, in order; the first step of a start is among them."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Take a row of ``evaluations.jsonl``."""

    def close(self, result: Result | None) -> None:
        """Write out what is left; without a result the run has not finished, and may go on later."""


def step_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a step: ``train/loss`` and so on, ``phase/forward`` and so on in seconds."""
    return {
        f"{'phase' if name in PHASES else 'train'}/{name}": value
        for name, value in row.items()
        if name != "step"
    }


def evaluation_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation: ``test/accuracy`` and so on, other metrics by their names."""
    plain = {name: value for name, value in row.items() if name not in ("step", "metrics")}
    everything = {**plain, **row.get("metrics", {})}
    return {f"test/{name}": value for name, value in everything.items() if value is not None}
