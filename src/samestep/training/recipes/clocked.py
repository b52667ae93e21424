"""Runs a recipe under the step clock, which scripts use as well."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from samestep.base.errors import Error
from samestep.observe.clock.clock_file import ClockFile, ClockOptions, Config
from samestep.observe.clock.step_clock import ScriptClock
from samestep.parallel.sharding.position import Position
from samestep.ranks.world.protocol import World
from samestep.training.loop.parallel_step import LocalBatch, LocalBatches
from samestep.training.output.result import Result

Loading: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Returns the context in which a batch is drawn."""


class StepLimitReached(BaseException):
    """The requested number of steps is clocked; raised on all ranks after the same step."""


def clocked(
    train: Callable[[Loading], Result],
    world: World,
    clocking: ClockOptions,
    *,
    samples_per_epoch: int,
    config: Config,
    report: Callable[[str], None],
) -> Result | None:
    """Train, and clock the steps of this rank.

    The argument of `train` is the context of each batch, because the clock does not observe the loaders of
    recipes, which are not torch's. `report` receives one line if steps of a finished training could not be
    written.

    Returns:
        the result; None if the training ended at the requested number of steps.

    Raises:
        Error: this rank's file cannot be made or exists already, or the requested steps were not written.
    """
    file = ClockFile(clocking, world.place, "recipe", config=config)
    clock = ScriptClock(file, clocking, stop=_stop, samples_per_epoch=samples_per_epoch)
    try:
        with clock.attached():
            result = train(lambda: clock.loading() or nullcontext())
    except StepLimitReached:
        file.check()
        return None
    except BaseException as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise
    try:
        clock.end("end")
        file.check()
    except (Error, OSError) as error:
        report(str(error))
    return result


def _stop() -> None:
    raise StepLimitReached


class BatchesInContext:
    """Epochs of local batches, each drawn within the context that `loading` returns."""

    def __init__(self, batches: LocalBatches, loading: Loading) -> None:
        self._batches, self._loading = batches, loading

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, position: Position | None = None) -> Iterator[LocalBatch]:
        """See `LocalBatches.epoch`."""
        batches = iter(self._batches.epoch(position))
        while True:
            with self._loading():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
