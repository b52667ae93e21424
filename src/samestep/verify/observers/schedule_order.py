"""Notes schedules that step before their optimizer, so that the first learning rate is never used."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words
from samestep.verify.trace import Note, Place


@dataclass(slots=True, eq=False)
class _Schedule:
    """The steps of one schedule."""

    place: Place | None  # the line of its first step
    is_after_backward: bool  # whether a backward came before its first step
    early: int = 0  # number of its steps before the first step of any optimizer
    is_repeated: bool = False  # whether the line of its first step stepped it again after the optimizer
    steps: int = 0  # number of its steps


class ScheduleOrder(Check):
    """Compares the first steps of schedules and optimizers.

    Right scripts step a schedule early, too: to its position at a resume (several times, and once only), to a
    given epoch, in each micro-batch (more often than the optimizer), or after a step that overflow skipped.
    """

    def __init__(self) -> None:
        self._steps = 0  # steps of all optimizers, those that overflow skipped included
        self._has_backward = False
        self._schedules: dict[int, _Schedule] = {}

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {
            **dict.fromkeys(declarations.SCHEDULE_STEPS, wrapping(self._step_schedule)),
            declarations.SCALER_STEP: wrapping(self._step_scaler),
        }

    def _step_scaler(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = self._steps
        result = original(*args, **kwargs)
        self._steps += self._steps == before
        return result

    def _step_schedule(
        self, original: Callable[..., Any], schedule: LRScheduler, *args: Any, **kwargs: Any
    ) -> Any:
        if not (args or kwargs) and not _is_internal(sys._getframe(1)):  # noqa: SLF001 - as in script_position
            self._note_step(schedule)
        return original(schedule, *args, **kwargs)

    def _note_step(self, schedule: LRScheduler) -> None:
        place = current_place()
        found = self._schedules.setdefault(id(schedule), _Schedule(place, self._has_backward))
        found.steps += 1
        found.early += not self._steps
        found.is_repeated |= self._steps > 0 and place == found.place

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._has_backward = True

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        self._steps += 1

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for one in self._schedules.values():
            is_regular = one.is_after_backward or one.is_repeated
            if one.early == 1 and is_regular and one.steps <= self._steps + 1:
                yield Note(
                    "schedule-before-optimizer",
                    f"The schedule steps{in_words(one.place)} before the optimizer, so the first learning "
                    "rate is never used. Call its step after the optimizer's.",
                    one.place,
                )


def _is_internal(frame: FrameType | None) -> bool:
    """Return whether a schedule's constructor or another schedule makes the step."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FILE and code.co_name in ("_initial_step", "__init__", "step"):
            return True
        frame = frame.f_back
    return False


_FILE = sys.modules[LRScheduler.__module__].__file__
