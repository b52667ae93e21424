"""Notes GradScalers that skip step after step, and gradients that are clipped while they are scaled."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.hooks.training_events import parameters_of
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words
from samestep.verify.observers.tensor_state import is_zero
from samestep.verify.trace import Note, Place

_MOST_SKIPPED = 16  # skipped steps in succession after which the usual first scale, 2 ** 16, is 1


@dataclass(slots=True, eq=False)
class _Steps:
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
        self._steps: dict[int, _Steps] = {}
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
        steps = self._steps.setdefault(id(optimizer), _Steps(type(optimizer).__name__))
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
        found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = float(args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value", math.inf)))
        clip = current_place(), limit
        self._clipped |= {id(one): clip for one in found}
        return original(found, *args, **kwargs)

    def _note_clips(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Record clips of an optimizer's scaled gradients; a limit above the scale may be scaled itself."""
        if not scaler.is_enabled() or id(optimizer) in self._unscaled:
            return
        clips = [self._clipped[id(one)] for one in parameters_of(optimizer) if id(one) in self._clipped]
        scale = scaler.get_scale() if clips else 1.0
        self._early_clips |= {place: None for place, limit in clips if limit < scale != 1.0}

    def after_backward(self) -> None:
        """See `Check.after_backward`."""
        self._clipped.clear()
        self._unscaled.clear()

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`; a fused optimizer is called also for a step that it skips."""
        found = getattr(optimizer, "found_inf", None)
        self._has_stepped = found is None or is_zero(found)

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
