"""A script's own handlers of signals, called on all of its copies at one point: before a call of a model.

A handler sets a flag, as a rule, at which the loop looks in every step. Called when the signal arrives, one
copy would see it a step before another, write its checkpoint and leave, while the others wait for it.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from samestep.base.signals import WARNINGS
from samestep.world.world import World

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
AGREED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, *WARNINGS)
"""Signals that ask a run to stop, or tell it that its time is nearly over."""


class Handlers:
    """The handlers that a script has set.

    Args:
        world: the copies.
        install: sets a handler, as `signal.signal`.
        installed: returns the one that is set, as `signal.getsignal`.
    """

    def __init__(
        self,
        world: World,
        install: Callable[[int, Any], Any] = signal.signal,
        installed: Callable[[int], Any] = signal.getsignal,
    ) -> None:
        self._world, self._install, self._installed = world, install, installed
        self._handlers: dict[int, Handler] = {}
        self._kill = os.kill
        self._arrived: Counter[int] = Counter()
        self._handled: Counter[int] = Counter()

    def set(self, number: int, handler: Any) -> Any:
        """Set a handler, in the place of `signal.signal`."""
        before = self.get(number)
        own = number in AGREED and callable(handler) and handler is not signal.default_int_handler
        self._install(number, self.note if own else handler)
        if own:
            self._handlers[int(number)] = handler
        else:
            self._handlers.pop(int(number), None)
        return before

    def get(self, number: int) -> Any:
        """Return the handler that is set, in the place of `signal.getsignal`."""
        return self._handlers.get(int(number)) or self._installed(number)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Note that a signal has arrived at this copy."""
        self._arrived[number] += 1

    def agree(self) -> None:
        """Call the handlers of what has arrived at any copy; all of them call this, at the same point.

        A signal that each copy gets, now or a little later, is one.
        """
        if not self._handlers:
            return
        numbers = sorted(self._handlers)
        counts = torch.tensor([self._arrived[number] for number in numbers])
        self._world.all_reduce(counts, op="max")
        for number, count in zip(numbers, counts.tolist(), strict=True):
            while self._handled[number] < count:
                self._handled[number] += 1
                if (handler := self._handlers.get(number)) is not None:  # one before may have taken it away
                    handler(number, sys._getframe(1))  # noqa: SLF001 - where the script stands, as Python gives it

    def send(self, process: int, number: int) -> None:
        """Send a signal, in the place of `os.kill`; all copies send themselves one at the same point."""
        handler = self._handlers.get(int(number)) if process == os.getpid() else None
        if handler is None:
            self._kill(process, number)
        else:
            handler(int(number), sys._getframe(1))  # noqa: SLF001

    def raise_signal(self, number: int) -> None:
        """Send a signal to this copy, in the place of `signal.raise_signal`."""
        self.send(os.getpid(), number)

    def give_back(self) -> None:
        """Leave the handlers to Python."""
        while self._handlers:
            self._install(*self._handlers.popitem())


@contextmanager
def signals_agreed(world: World) -> Iterator[Handlers]:
    """Within, handlers that the script sets wait for `Handlers.agree`."""
    handlers = Handlers(world)
    with ExitStack() as stack:
        stack.callback(handlers.give_back)
        stack.enter_context(patch.object(signal, "signal", handlers.set))
        stack.enter_context(patch.object(signal, "getsignal", handlers.get))
        stack.enter_context(patch.object(signal, "raise_signal", handlers.raise_signal))
        stack.enter_context(patch.object(os, "kill", handlers.send))
        yield handlers
