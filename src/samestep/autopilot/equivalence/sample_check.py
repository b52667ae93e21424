"""Compares some split calls of a run with the unsplit call: the sample checks.

The equivalence check covers the samples and states that it has computed. A model that counts its calls, or
that treats rare samples differently, may differ later; a difference ends the run before its result is used.
"""

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from samestep.autopilot.equivalence.disturbance import parametrizations_computed
from samestep.autopilot.equivalence.rounding import differing_buffer
from samestep.autopilot.equivalence.unsplit_call import ModuleRun, UnsplitCall
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.call_plans import SplitPlan, outcome
from samestep.autopilot.split.gradients import training_nothing
from samestep.autopilot.split.slice_call import Forward
from samestep.hooks.random_draws import RngState
from samestep.hooks.tensor_tree import leaves, text

_FIRST_TRAINING, _FIRST_EVALUATION = 32, 100
"""The number of calls before the first check, divided by the number of ranks. An unsplit forward takes as
long as one slice per rank, and a training step as long as three forwards, so checks take about 1 % of the
time."""


class CheckSchedule:
    """Decides, equally on all ranks, which split calls are checked: every K-th, or for None ever fewer."""

    def __init__(self, size: int, every: int | None) -> None:
        self._size, self._every = size, every
        self._calls: WeakKeyDictionary[nn.Module, dict[bool, int]] = WeakKeyDictionary()

    def is_due(self, module: nn.Module, *, grad: bool) -> bool:
        """Count a split call of a module, and return whether it is checked."""
        counts = self._calls.setdefault(module, {})
        counts[grad] = count = counts.get(grad, 0) + 1
        if self._every is not None:
            return self._every > 0 and count % self._every == 0
        number, rest = divmod(count, self._size * (_FIRST_TRAINING if grad else _FIRST_EVALUATION))
        return rest == 0 and number.bit_count() == 1


class SampleCheck:
    """Computes a call unsplit, and then compares the split call with it."""

    def __init__(
        self, forward: Forward, module: nn.Module, given: CallArguments, device: torch.device, *, draws: bool
    ) -> None:
        self._module, self._device = module, device
        self._run = ModuleRun(forward, module, device)
        self._whole: UnsplitCall | None = None
        # It may differentiate within forward; the split call raises other errors.
        with suppress(Exception), parametrizations_computed(), training_nothing():
            self._whole = self._run.unsplit(given, records=draws)
        self._run.restore()

    def difference(self, result: Any, plan: SplitPlan) -> str:
        """Return how the outputs and the state of the split call differ; empty if they are equal."""
        whole = self._whole
        if whole is None:
            return ""
        parts = dict(leaves(outcome(self._module, result, plan.sides)))
        if parts.keys() != whole.outputs.keys():
            return "its outputs have another structure"
        for path, tensor in whole.outputs.items():
            if not whole.are_close(parts[path], tensor):
                apart = _apart(parts[path], tensor)
                return f"its output{text(path[1:])} differs{apart}"
        name = differing_buffer(self._run.before.buffers(), whole.buffers, whole.precision)
        if name is not None:
            return f"its buffer {name} differs"
        if not RngState.now(self._device).same(whole.drawn):
            return "it draws other random numbers"
        return ""


def _apart(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape:
        return f": it is {list(one.shape)}, and {list(other.shape)} unsplit"
    difference = (one.detach().double() - other.double()).abs().nan_to_num(float("inf")).max()
    return f" by up to {float(difference):.2g}"
