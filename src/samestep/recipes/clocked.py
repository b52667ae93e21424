"""A recipe under the step clock that any script can have."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from samestep.base import env
from samestep.base.errors import Error
from samestep.measure.clock_file import ClockFile, Clocking, Config
from samestep.sharding.position import Position
from samestep.training.parallel import Part, Parts
from samestep.training.result import Result
from samestep.watch.clocked import ScriptClock
from samestep.world.world import World

Loading: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Returns what a batch is drawn within."""


class _Enough(BaseException):
    """As many steps are clocked as were wanted; raised on all ranks after the same step."""


def clocked(
    train: Callable[[Loading], Result],
    world: World,
    clocking: Clocking,
    *,
    samples_per_epoch: int,
    config: Config,
    tell: Callable[[str], None],
) -> Result | None:
    """Train, and clock the steps of this rank.

    Args:
        train: is given what tells the clock that a batch is drawn: the loaders of recipes are not torch's.
        world: the ranks.
        clocking: what is wanted.
        samples_per_epoch: that are trained on.
        config: what is trained.
        tell: told of steps that could not be written, once the training has finished: it has not failed.

    Returns:
        what came of it; None where it was left once as many steps were taken down as were wanted.

    Raises:
        UsageError: this rank's file cannot be made, or is there already.
        Error: not all steps could be written, and the training was left for them.
    """
    again = bool(env.integer(env.snapshot(), "TORCHELASTIC_RESTART_COUNT"))
    file = ClockFile(clocking, world.place, "recipe", again=again, config=config)
    clock = ScriptClock(
        file,
        clocking,
        stop=_stop,
        samples_per_epoch=samples_per_epoch,
    )
    try:
        with clock.attached():
            result = train(lambda: clock.loading() or nullcontext())
    except _Enough:
        file.check()
        return None
    except BaseException as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise
    try:
        clock.end("end")
        file.check()
    except (Error, OSError) as error:
        tell(str(error))
    return result


def _stop() -> None:
    raise _Enough


class DrawnWithin:
    """Epochs of a training's batches, each drawn within what `loading` returns.

    Args:
        parts: draws them.
        loading: is told.
    """

    def __init__(self, parts: Parts, loading: Loading) -> None:
        self._parts, self._loading = parts, loading

    def __len__(self) -> int:
        return len(self._parts)

    def epoch(self, position: Position | None = None) -> Iterator[Part]:
        """See `Parts.epoch`."""
        parts = iter(self._parts.epoch(position))
        while True:
            with self._loading():
                part = next(parts, None)
            if part is None:
                return
            yield part
