"""A run folder whose rows also go to loggers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.training.loggers.logger import Logger
from samestep.training.result import Result
from samestep.training.run_folder import RunFolder, Sink

POINTS = 10
"""Rows of a look that loggers get at most. One costs a logger about a millisecond, and a look may bring 500
rows in a second."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers whose packages are not installed, before work starts.

    Raises:
        UsageError: one is missing; says what to install.
    """
    for name in names:
        if find_spec(name) is None:
            raise UsageError(
                f"--logger {name} needs the package {name}, which is not installed: "
                "pip install 'samestep[loggers]'."
            )


def observed(
    folder: RunFolder, names: Sequence[str], config: Mapping[str, Any], *, tell: Callable[[str], None]
) -> Sink:
    """Return a sink that keeps rows in `folder` and shows them to the loggers called `names`.

    Args:
        folder: of the run, on rank 0.
        names: as in `Conduct.logger`; each is that of a package and of the module here that writes for it.
        config: what reproduces the run.
        tell: told of a logger that cannot be opened or fails later, once; the training goes on without it.
    """
    watched = Observed(folder, tell)
    for name in dict.fromkeys(names):
        watched.open(name, folder.path, config)
    return watched


class Observed:
    """A sink that passes rows on to another one first, and then to loggers.

    Args:
        sink: keeps everything; its errors are errors.
        tell: told of a logger that fails.
    """

    def __init__(self, sink: Sink, tell: Callable[[str], None]) -> None:
        self._sink = sink
        self._tell = tell
        self._loggers: dict[str, Logger] = {}

    def open(self, name: str, path: Path, config: Mapping[str, Any]) -> None:
        """Add the logger called `name` of the run in the folder `path`."""
        module = import_module(f"samestep.training.loggers.{name}")
        with self._without_it(name):
            self._loggers[name] = module.open_logger(path, config, self._tell)

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.steps`."""
        self._sink.steps(rows)
        some = spread(rows, POINTS)
        self._each(lambda logger: logger.steps(some))

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.ranks`; loggers show rank 0 only."""
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
        """Let go of the loggers; where `finish` has not been called, the run has not finished."""
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
        """Go on without a logger that fails in the block, and say so."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the training is worth more
            self._loggers.pop(name, None)
            what = " ".join(str(error).split()) or "no word"
            self._tell(
                f"--logger {name} has failed and is off from here on ({type(error).__name__}: {what}); "
                "metrics.jsonl has everything"
            )


def spread(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most so many (2 or more) of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]
