"""Measures the steps of a training with split calls and with unsplit ones, to find the faster way.

A step is the time between two steps of the same optimizer, with all that the script does meanwhile. Steps
with unsplit calls come by themselves: calls are unsplit while they are checked, and short ones are, to
measure them (`samestep.autopilot.split.short_calls`).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from os import getpid
from statistics import median
from weakref import ref

from torch.optim.optimizer import Optimizer

from samestep.base.console import write_stderr
from samestep.base.units import counted, seconds_text

_LEAST = 3
"""Steps of each way that decide which one is faster."""
_KEPT = 5
"""The last steps of each way, of which the median counts: three new ones are the majority."""
_CLEARLY = 0.95
"""The ratio of an unsplit step to a split one, below which training calls are unsplit."""
_LONG_CHECKS_S = 1.0
"""The seconds of all checks from which the report states them."""


@dataclass(slots=True)
class _Mark:
    """The time of an optimizer's last step, and the number of calls and checks before it."""

    optimizer: ref[Optimizer]
    began: float
    split: int
    unsplit: int
    checks: int


@dataclass(slots=True)
class StepCosts:
    """The steps of a script's optimizers on `size` workers."""

    size: int = 1
    clock: Callable[[], float] = time.perf_counter
    is_faster_unsplit: bool = False
    """Whether a step with unsplit calls is clearly shorter."""
    checks_s: float = 0.0
    """The seconds of all checks."""
    _is_noted: bool = False
    _process: int = field(default_factory=getpid)
    _split: int = 0
    _unsplit: int = 0
    _checks: int = 0
    _marks: dict[int, _Mark] = field(default_factory=dict)
    """The last step of each optimizer, by its id, since an optimizer may define its own hash."""
    _split_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _unsplit_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note_call(self, *, is_split: bool) -> None:
        """Count a call that needs gradients."""
        if is_split:
            self._split += 1
        else:
            self._unsplit += 1

    def note_check(self, seconds: float) -> None:
        """Count a check, or a part of it; the time of its step does not count."""
        self._checks += 1
        self.checks_s += seconds

    def after_step(self, optimizer: Optimizer) -> None:
        """Take the time of a step, at its end."""
        if getpid() != self._process:
            return
        now, last = self.clock(), self._marks.get(id(optimizer))
        self._marks[id(optimizer)] = _Mark(ref(optimizer), now, self._split, self._unsplit, self._checks)
        if last is None or last.optimizer() is not optimizer or last.checks != self._checks:
            return
        if self._split > last.split:
            self._split_s.append(now - last.began)
        elif self._unsplit > last.unsplit:
            self._unsplit_s.append(now - last.began)
        if min(len(self._split_s), len(self._unsplit_s)) >= _LEAST:
            self._compare(median(self._split_s), median(self._unsplit_s))

    def _compare(self, split_s: float, unsplit_s: float) -> None:
        self.is_faster_unsplit = unsplit_s < _CLEARLY * split_s

    def note_unsplit_steps(self) -> None:
        """Report, once, that calls are unsplit from now on because their steps are shorter."""
        if not self._is_noted:
            self._is_noted = True
            split_s, unsplit_s = median(self._split_s), median(self._unsplit_s)
            write_stderr(
                f"samestep: note: a step takes {seconds_text(split_s)} with split calls and "
                f"{seconds_text(unsplit_s)} with unsplit ones, which are therefore used\n"
            )

    def line(self) -> str | None:
        """Return what a step takes on the workers and on one process; None if no step was measured."""
        workers = counted(self.size, "worker")
        checks = f"; checks took {seconds_text(self.checks_s)}" if self.checks_s >= _LONG_CHECKS_S else ""
        if not self._split_s:
            if not self._unsplit_s:
                return None
            own = seconds_text(median(self._unsplit_s))
            return f"{workers}: {own} a step, computed by one of them{checks}"
        split = f"{workers}: {seconds_text(median(self._split_s))} a step"
        if len(self._unsplit_s) < _LEAST:
            return split + checks
        advice = ": run it with -n 1, or with larger batches" if self.is_faster_unsplit else ""
        return f"{split}; one process: about {seconds_text(median(self._unsplit_s))}{advice}{checks}"
