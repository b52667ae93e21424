"""Finds calls that take longer when they are split; they are then computed unsplit.

To split a call costs comparisons, messages and the gathering of outputs. A small network that an integrator
calls a hundred times in each step takes tens of times as long split as unsplit, and neither way changes the
results beyond rounding. So calls of one kind are timed after the first, and again from the 64th on each time
their number has doubled, since other programs may have disturbed a measurement::

    calls 2 to 4     split; the median of their times is that of a split call
    calls 5 to 7     unsplit, unless that time is long; their median decides
    calls 8 to 64    as decided

Calls of a training are also unsplit while its steps as a whole take longer with split ones
(`samestep.autopilot.script.call_account`).
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import nn

from samestep.autopilot.script.call_account import LONGER_SPLIT, Account
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.call_signatures import sizes_of
from samestep.autopilot.state.reachable_state import is_compiled

FIRST = 1
"""Split calls of one kind before the first measurement."""
AGAIN = 64
"""Calls before the second one; the others follow when their number has doubled: a guess, so that measurements
are a few of all calls."""
TIMED = 3
"""Calls of each way in a measurement: the fewest whose median is not moved by a slow one."""
MEASURED = "to measure how long it takes unsplit"
"""The reason for the unsplit calls of a measurement."""
SHORTER_STEPS = "the training's steps are shorter with unsplit calls"
"""The reason for calls that are unsplit because of the steps, whatever the calls themselves take."""
SAVE_TIME = (MEASURED, SHORTER_STEPS, LONGER_SPLIT)
"""The reasons for calls that could be split, as far as known."""
LONGEST_S = 0.2
"""The longest split call that is compared with an unsplit one, which delays the training: a guess."""
_WITH_BACKWARD, _FORWARD_ALONE = 3.0, 1.5
"""The ratio of the times of a split and an unsplit forward, above which calls are unsplit: guesses.

An unsplit call has an unsplit backward, too, which takes about twice as long as its forward; that of a slice
sends nothing.
"""


@dataclass(eq=False, slots=True)
class CallKind:
    """The calls of one module with gradients or without, in one mode, and with inputs of the same sizes."""

    grad: bool
    is_unsplit: bool = False
    """Whether the next call is computed unsplit."""
    calls: int = 0
    """The number of calls that were split, or that could have been split."""
    is_short: bool = False
    """Whether the calls have turned out to take longer split."""
    has_few: bool = False
    """Whether they have fewer samples than workers: then no state of the module lets them be split."""
    is_timed: bool = False
    began: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """The times of the calls in the present way, if they are timed."""
    split_s: float = 0.0
    """The time of a split call in the present measurement."""

    @property
    def why(self) -> str:
        """The reason why the next call is unsplit."""
        if self.is_timed:
            return MEASURED
        return LONGER_SPLIT if self.is_short else SHORTER_STEPS


class ShortCalls:
    """Decides which calls of a script are computed unsplit to save time."""

    def __init__(
        self,
        device: torch.device,
        account: Account,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device, self._account, self._is_enabled, self._clock = device, account, enabled, clock
        self._modules: WeakKeyDictionary[nn.Module, dict[Any, CallKind]] = WeakKeyDictionary()

    def begin(self, module: nn.Module, arguments: CallArguments) -> CallKind:
        """Return the kind of a call that begins; `is_unsplit` is its way."""
        grad = torch.is_grad_enabled()
        key = grad, module.training, sizes_of(arguments)
        kind = self._modules.setdefault(module, {}).setdefault(key, CallKind(grad))
        if kind.is_timed:
            kind.began = self._now()
        elif self._is_enabled:
            # A device computes while the script goes on, so the times of a few steps are no measurement.
            is_measured = grad and self._device.type == "cpu"
            kind.is_unsplit = kind.is_short or (is_measured and self._has_longer_steps(module))
        return kind

    def end(self, kind: CallKind, module: nn.Module) -> None:
        """Count a call that was split, or is unsplit to save time."""
        if not self._is_enabled:
            return
        if kind.is_timed:
            kind.seconds.append(self._now() - kind.began)
            if len(kind.seconds) == TIMED:
                self._conclude(kind, module)
        kind.calls += 1
        if kind.calls == FIRST or (kind.calls >= AGAIN and kind.calls.bit_count() == 1):
            kind.is_timed, kind.is_unsplit = True, False

    def _conclude(self, kind: CallKind, module: nn.Module) -> None:
        """Take the time of a call in the present way; begin to time the other way, or decide."""
        seconds = median(kind.seconds)
        kind.seconds.clear()
        if not kind.is_unsplit:
            kind.split_s = seconds
            # Code that is compiled would be compiled again, for the whole batch.
            kind.is_unsplit = kind.is_timed = seconds <= LONGEST_S and not is_compiled(module)
            return
        least = _WITH_BACKWARD if kind.grad else _FORWARD_ALONE
        kind.is_timed, kind.is_short = False, kind.split_s > least * seconds
        if kind.is_short:
            self._account.note_longer_split(self._account.place_of(module), seconds, kind.split_s)

    def _has_longer_steps(self, module: nn.Module) -> bool:
        return self._account.steps.is_faster_unsplit(lambda: self._account.place_of(module))

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        return self._clock()


MADE_AGAIN = "the script makes this module again every few calls"
_FEW = 64
"""Calls before which a module is not worth its check, which takes as long as tens of them."""
_ENDED = 3
"""Modules of a class that end after so few calls before the next ones wait: a guess."""


class FreshModules:
    """The calls of each module, and the classes whose modules end soon."""

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
        self._ended: Counter[type] = Counter()
        """The modules of each class in a row that have ended after few calls."""

    def waits(self, module: nn.Module) -> bool:
        """Count a call of a module, and return whether it is computed unsplit."""
        calls = self._calls.get(module)
        if calls is None:
            calls = self._calls[module] = [0]
            finalize(module, self._end, type(module), calls).atexit = False
        calls[0] += 1
        return calls[0] <= _FEW and self._ended[type(module)] >= _ENDED

    def _end(self, kind: type, calls: list[int]) -> None:
        self._ended[kind] = self._ended[kind] + 1 if calls[0] <= _FEW else 0
