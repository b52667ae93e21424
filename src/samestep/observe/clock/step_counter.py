"""Counts the steps and samples of a script, and measures the phases of a step by the host's clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from samestep.base.units import seconds_text
from samestep.hooks.training_events import Listener

PHASES = ("loading", "forward", "backward", "optimizer")
_ASIDE = "evaluation"


@dataclass(slots=True)
class StepCounts:
    """Counts and times of one rank; the first step, which includes one-time work, is not timed.

    Args:
        steps: optimizer steps; backwards, in a script without optimizers.
        samples: samples of training calls.
        evaluated: samples of other calls.
        seconds: seconds of each phase, and of evaluation.
        total_s: seconds from the end of the first step to the end of the last.
    """

    steps: int = 0
    samples: int = 0
    evaluated: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, _ASIDE), 0.0))
    total_s: float = 0.0

    def summary(self, *, is_sharded: bool) -> str:
        """Return the counts as one line.

        Args:
            is_sharded: whether these are the counts of worker 0's shard.
        """
        where = " on worker 0" if is_sharded else ""
        counted = f"{self.steps} steps, {self.samples} samples in training, {self.evaluated} otherwise{where}"
        in_steps = self.total_s - self.seconds[_ASIDE]
        if self.steps < 2 or in_steps <= 0:
            return counted
        parts = [f"{name} {self.seconds[name] / in_steps:.0%}" for name in PHASES]
        rest = max(0.0, in_steps - sum(self.seconds[name] for name in PHASES)) / in_steps
        each_step = seconds_text(in_steps / (self.steps - 1))
        return f"{counted}; {each_step} a step: {', '.join(parts)}, the rest {rest:.0%}"


class Counter(Listener):
    """Counts and times the steps of one rank.

    Args:
        now: returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.count = StepCounts()
        self._now = now
        self._first: float | None = None
        self._begun = 0.0
        self._optimizers = 0

    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Any:
        """See `Listener.call`."""
        del module
        rows = next((one.size(0) for one in inputs if isinstance(one, Tensor) and one.dim()), 0)
        if is_training:
            self.count.samples += rows
        else:
            self.count.evaluated += rows
        return self._timed("forward" if is_training else _ASIDE)

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """See `Listener.backward`."""
        del losses
        with self._timed("backward"):
            yield
        if not self._optimizers:
            self._step_done()

    def loading(self) -> Any:
        """See `Listener.loading`."""
        return self._timed("loading")

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        del optimizer
        if not self._optimizers:
            self._optimizers, self.count.steps, self._first = 1, 0, None
        self._begun = self._instant()

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        del optimizer
        self._add("optimizer", self._instant() - self._begun)
        self._step_done()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = self._instant()
        try:
            yield
        finally:
            self._add(phase, self._instant() - begun)

    def _add(self, phase: str, seconds: float) -> None:
        if self._first is not None:
            self.count.seconds[phase] += seconds

    def _step_done(self) -> None:
        self.count.steps += 1
        now = self._now()
        if self._first is None:
            self._first = now
        self.count.total_s = now - self._first

    def _instant(self) -> float:
        """Return the time after an accelerator has finished its queue, so that a phase includes its work."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return self._now()
