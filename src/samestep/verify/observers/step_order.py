"""Notes calls around a step in the wrong order: zeroing, scaling and clipping of gradients, the schedule."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from samestep.base.units import counted
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words, is_zero, overflows, version
from samestep.verify.trace import Note, Place

_LEAST_IN_SUCCESSION = 2  # steps in succession that show it
_Version = tuple[int, int]


@dataclass(slots=True, eq=False)
class _StepGradients:
    """The gradients of one optimizer, from the end of one step to the end of the next."""

    optimizer: Optimizer
    place: Place | None = None
    after: dict[int, _Version] = field(default_factory=dict)
    """Memory and version of each gradient that the last step left, unless it was zero."""
    is_kept: bool | None = None
    """Whether a backward began with the gradients of the last step; None before a backward."""
    before_backward: dict[int, _Version] = field(default_factory=dict)
    is_reached: bool = False
    """Whether a backward has changed the gradients since the last step."""
    is_live: bool = False
    """Whether the last backward that changed the gradients left one that is not zero."""
    is_thrown_away: bool = False
    """Whether the running step began without these gradients."""
    accumulated: int = 0
    """Number of steps in succession whose gradients include those of the step before."""
    is_accumulating: bool = False
    thrown_away: int = 0
    used: int = 0
    """Numbers of steps without and with the gradients of the backward before."""

    def gradients(self) -> dict[int, Tensor]:
        """Return the gradients by the parameter's id."""
        return {
            id(parameter): parameter.grad
            for parameter in parameters_of(self.optimizer)
            if parameter.grad is not None
        }

    def versions(self) -> dict[int, _Version]:
        """Return the memory and version of each gradient; a value cannot change with neither changing."""
        return {number: version(gradient) for number, gradient in self.gradients().items()}

    def note_zeros(self) -> None:
        """Record that a gradient of the last step is zero or missing by now."""
        if self.after and self.is_kept is not False:
            gradients = self.gradients()
            if any(is_zero(gradients.get(number)) for number in self.after):
                self.is_kept = False


class GradientZeroing(Check):
    """Compares the gradients of each optimizer after a step, before a backward, and before a step."""

    def __init__(self) -> None:
        self._steps: dict[int, _StepGradients] = {}

    def made(self, optimizer: Optimizer) -> None:
        """See `Check.made`."""
        self._steps[id(optimizer)] = _StepGradients(optimizer)

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """See `Check.before_backward`."""
        del losses
        for state in self._steps.values():
            state.before_backward = state.versions()
            if state.is_kept is None:
                state.is_kept = all(
                    state.before_backward.get(key) == left for key, left in state.after.items()
                )
            state.note_zeros()

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        for state in self._steps.values():
            if state.versions() != state.before_backward:
                state.is_reached = True
                state.is_thrown_away = False
                state.is_live = not all(is_zero(gradient) for gradient in state.gradients().values())

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        state = self._steps.setdefault(id(optimizer), _StepGradients(optimizer))
        state.place = current_place()
        state.note_zeros()
        is_empty = all(is_zero(gradient) for gradient in state.gradients().values())
        state.is_thrown_away = state.is_live and is_empty

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Check.after_step`; a closure may have run backwards inside of the step."""
        state = self._steps[id(optimizer)]
        state.thrown_away += state.is_thrown_away
        state.used += not state.is_thrown_away and state.is_reached
        if state.is_reached:
            state.accumulated = state.accumulated + 1 if state.after and state.is_kept else 0
            state.is_accumulating |= state.accumulated >= _LEAST_IN_SUCCESSION
        state.after = {key: version(value) for key, value in state.gradients().items() if not is_zero(value)}
        state.is_kept, state.is_reached, state.is_live = None, False, False

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for state in self._steps.values():
            name = f"{type(state.optimizer).__name__}{in_words(state.place)}"
            if state.is_accumulating:
                yield Note(
                    "gradients-not-zeroed",
                    f"The gradients at the step of {name} include those of the steps before: nothing zeroes "
                    "them. Call zero_grad in each step, before backward or after step.",
                    state.place,
                )
            elif state.thrown_away >= _LEAST_IN_SUCCESSION and not state.used:
                yield Note(
                    "gradients-thrown-away",
                    f"The gradients were zero at {counted(state.thrown_away, 'step')} of {name}, though a "
                    "backward had computed them. Call zero_grad before backward or after step, not "
                    "between them.",
                    state.place,
                )


_MOST_SKIPPED = 16  # skipped steps in succession after which the usual first scale, 2 ** 16, is 1


@dataclass(slots=True, eq=False)
class _ScaledSteps:
    """The steps of one optimizer through a GradScaler."""

    name: str
    place: Place | None = None
    skipped: int = 0
    made: int = 0
    in_succession: int = 0
    longest: int = 0


class LossScaling(Check):
    """Counts skipped steps, and detects clipping between a backward and the unscaling."""

    def __init__(self) -> None:
        self._steps: dict[int, _ScaledSteps] = {}
        self._has_stepped = False
        """Whether an optimizer has updated its parameters in the running step of a scaler."""
        self._clipped: dict[int, tuple[Place | None, float]] = {}
        """The last line that clipped a gradient since the backward, and its limit, by the parameter's id."""
        self._unscaled: set[int] = set()
        self._early_clips: dict[Place | None, None] = {}

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {
            declarations.SCALER_STEP: wrapping(self._step),
            declarations.SCALER_UNSCALE: wrapping(self._unscale),
            **dict.fromkeys(declarations.CLIPS, wrapping(self._clip)),
        }

    def _step(
        self,
        original: Callable[..., Any],
        scaler: GradScaler,
        optimizer: Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        self._note_clips(scaler, optimizer)  # a fused optimizer unscales by itself
        self._has_stepped = False
        result = original(scaler, optimizer, *args, **kwargs)
        steps = self._steps.setdefault(id(optimizer), _ScaledSteps(type(optimizer).__name__))
        steps.place = current_place()
        steps.made += self._has_stepped
        steps.skipped += not self._has_stepped
        steps.in_succession = 0 if self._has_stepped else steps.in_succession + 1
        steps.longest = max(steps.longest, steps.in_succession)
        return result

    def _unscale(self, original: Callable[..., Any], scaler: GradScaler, optimizer: Optimizer) -> Any:
        self._note_clips(scaler, optimizer)
        self._unscaled.add(id(optimizer))
        return original(scaler, optimizer)

    def _clip(
        self,
        original: Callable[..., Any],
        parameters: Iterable[Tensor] | Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = float(args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value", math.inf)))
        clip = current_place(), limit
        self._clipped |= {id(parameter): clip for parameter in clipped}
        return original(clipped, *args, **kwargs)

    def _note_clips(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Record clips of an optimizer's scaled gradients; a limit above the scale may be scaled itself."""
        if not scaler.is_enabled() or id(optimizer) in self._unscaled:
            return
        clips = [
            self._clipped[id(parameter)]
            for parameter in parameters_of(optimizer)
            if id(parameter) in self._clipped
        ]
        scale = scaler.get_scale() if clips else 1.0
        self._early_clips |= {place: None for place, limit in clips if limit < scale != 1.0}

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._clipped.clear()
        self._unscaled.clear()

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        self._has_stepped = not overflows(optimizer)

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for steps in self._steps.values():
            if steps.longest > _MOST_SKIPPED and steps.skipped > steps.made:
                yield Note(
                    "amp-steps-skipped",
                    f"GradScaler skipped {steps.skipped} of {steps.skipped + steps.made} steps of "
                    f"{steps.name}{in_words(steps.place)}, {steps.longest} in succession, because gradients "
                    "were infinite or NaN: no scale can repair that. Find the operation by "
                    "torch.autograd.detect_anomaly().",
                    steps.place,
                )
        for place in self._early_clips:
            yield Note(
                "clip-before-unscale",
                f"Gradients are clipped{in_words(place)} while they are scaled, so nearly nothing remains of "
                "them. Call scaler.unscale_(optimizer) before.",
                place,
            )


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
        record = self._schedules.setdefault(id(schedule), _Schedule(place, self._has_backward))
        record.steps += 1
        record.early += not self._steps
        record.is_repeated |= self._steps > 0 and place == record.place

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._has_backward = True

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        self._steps += 1

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for schedule in self._schedules.values():
            is_regular = schedule.is_after_backward or schedule.is_repeated
            if schedule.early == 1 and is_regular and schedule.steps <= self._steps + 1:
                yield Note(
                    "schedule-before-optimizer",
                    f"The schedule steps{in_words(schedule.place)} before the optimizer, so the first "
                    "learning rate is never used. Call its step after the optimizer's.",
                    schedule.place,
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
