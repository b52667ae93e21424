"""Defines the interface of loggers, and sends them the rows of a run after the run folder has stored them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from samestep.base.errors import UsageError
from samestep.base.step_phases import OF_LOOP
from samestep.training.output.result import Result
from samestep.training.output.run_folder import RunFolder, Sink


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
        f"{'phase' if name in OF_LOOP else 'train'}/{name}": value
        for name, value in row.items()
        if name != "step"
    }


def evaluation_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation: ``test/accuracy`` etc., and other metrics by their names."""
    plain = {name: value for name, value in row.items() if name not in ("step", "metrics")}
    everything = {**plain, **row.get("metrics", {})}
    return {f"test/{name}": value for name, value in everything.items() if value is not None}


POINTS = 10
"""Maximum rows per window for loggers: a window can have 500 rows a second, at about 1 ms each."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers whose packages are not installed.

    Raises:
        UsageError: names the missing package and the command that installs it.
    """
    for name in names:
        if find_spec(name) is None:
            raise UsageError(
                f"--logger {name} needs the package {name}, which is not installed: "
                "pip install 'samestep[loggers]'."
            )


def with_loggers(
    folder: RunFolder, names: Sequence[str], config: Mapping[str, Any], *, report: Callable[[str], None]
) -> Sink:
    """Return a sink that stores rows in `folder` and sends them to the loggers called `names`, on rank 0.

    `report` receives one line about a logger that fails; the training continues without it.
    """
    sink = LoggedSink(folder, report)
    for name in dict.fromkeys(names):
        sink.open(name, folder.path, config)
    return sink


class LoggedSink(Sink):
    """A sink that passes rows to another sink, whose errors are raised, and then to loggers."""

    def __init__(self, sink: Sink, report: Callable[[str], None]) -> None:
        self._sink = sink
        self._report = report
        self._loggers: dict[str, Logger] = {}

    def open(self, name: str, path: Path, config: Mapping[str, Any]) -> None:
        """Open the logger called `name` for the run in the folder `path`."""
        module = import_module(f"samestep.training.output.loggers.{name}")
        with self._without_it(name):
            self._loggers[name] = module.open_logger(path, config, self._report)

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.steps`."""
        self._sink.steps(rows)
        some = spread(rows, POINTS)
        self._each(lambda logger: logger.steps(some))

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.ranks`; loggers receive rank 0's figures only."""
        self._sink.ranks(rows)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Sink.evaluation`."""
        self._sink.evaluation(row)
        self._each(lambda logger: logger.evaluation(row))

    def finish(self, result: Result) -> None:
        """See `Sink.finish`."""
        self._sink.finish(result)
        self._end(result)

    def close(self) -> None:
        """Close the loggers and the sink; without a call of `finish` the run is unfinished."""
        self._end(None)
        self._sink.close()

    def _end(self, result: Result | None) -> None:
        self._each(lambda logger: logger.close(result))
        self._loggers.clear()

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            with self._without_it(name):
                act(logger)

    @contextmanager
    def _without_it(self, name: str) -> Iterator[None]:
        """Drop a logger that fails in the block, and report it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no failure of a logger ends a training
            self._loggers.pop(name, None)
            reason = " ".join(str(error).split()) or "no message"
            self._report(
                f"--logger {name} failed and is now off ({type(error).__name__}: {reason}); metrics.jsonl "
                "has all figures"
            )


def spread(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most `most` (2 or more) of the rows, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]
