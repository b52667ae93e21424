"""Calls a script's signal handlers on all ranks at the same point: before a call of a model.

A handler usually sets a flag that the loop reads in every step. If it ran when the signal arrives, one rank
would read the flag a step before another, write its checkpoint and exit, while the others wait for it.
"""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeAlias

import torch

from samestep.base.errors import UsageError
from samestep.base.signals import WARNINGS
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, instead
from samestep.ranks.world.protocol import World

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
AGREED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, *WARNINGS)
"""Signals that stop a run, or warn of its time limit."""


class SignalHandlers:
    """The signal handlers that a script has set."""

    def __init__(
        self,
        world: World,
        install: Callable[[int, Any], Any] = signal.signal,
        installed: Callable[[int], Any] = signal.getsignal,
    ) -> None:
        self._world, self._install, self._installed = world, install, installed
        self._handlers: dict[int, Handler] = {}
        self._kill, self._process, self._thread = os.kill, os.getpid(), threading.get_ident()
        self._arrived: Counter[int] = Counter()
        self._handled: Counter[int] = Counter()

    def set(self, number: int, handler: Any) -> Any:
        """Set a handler; replaces `signal.signal`.

        Raises:
            UsageError: asyncio sets it; its loop gets the signal itself, at another step on each rank.
        """
        before = self.get(number)
        is_agreed = number in AGREED and callable(handler) and handler is not signal.default_int_handler
        if is_agreed and getattr(handler, "__module__", "") == "asyncio.unix_events":
            raise UsageError(
                "the script calls loop.add_signal_handler, whose callback would run at another step on each "
                "worker. Set the handler with signal.signal, or run with -n 1."
            )
        self._install(number, self.record if is_agreed else handler)
        if is_agreed:
            self._handlers[int(number)] = handler
        else:
            self._handlers.pop(int(number), None)
        return before

    def get(self, number: int) -> Any:
        """Return the handler that is set; replaces `signal.getsignal`."""
        return self._handlers.get(int(number)) or self._installed(number)

    def record(self, number: int, frame: FrameType | None) -> None:
        """Record that a signal has arrived at this rank; call its handler in a process that it has forked."""
        if os.getpid() != self._process:
            self._handlers[number](number, frame)
        self._arrived[number] += 1

    def agree(self) -> None:
        """Call the handlers of signals that have arrived at any rank; all ranks call this at the same point.

        A signal that several ranks receive, now or a little later, counts once.
        """
        if not self._handlers:
            return
        numbers = sorted(self._handlers)
        counts = torch.tensor([self._arrived[number] for number in numbers], device="cpu")
        self._world.all_reduce(counts, op="max")
        for number, count in zip(numbers, counts.tolist(), strict=True):
            while self._handled[number] < count:
                self._handled[number] += 1
                handler = self._handlers.get(number)
                if handler is not None:  # an earlier handler may have removed it
                    handler(number, sys._getframe(1))  # noqa: SLF001 - as Python

    def send(self, process: int, number: int) -> None:
        """Send a signal; replaces `os.kill`. All ranks send one to themselves at the same point.

        This is so in the script's main thread; what another one sends arrives like a signal from outside.
        """
        is_own = process == os.getpid() and threading.get_ident() == self._thread
        handler = self._handlers.get(int(number)) if is_own else None
        if handler is None:
            self._kill(process, number)
        else:
            handler(int(number), sys._getframe(1))  # noqa: SLF001

    def raise_signal(self, number: int) -> None:
        """Send a signal to this rank; replaces `signal.raise_signal`."""
        self.send(os.getpid(), number)

    def restore(self) -> None:
        """Install the script's handlers in Python."""
        while self._handlers:
            self._install(*self._handlers.popitem())


@contextmanager
def synchronized_signals(world: World) -> Iterator[SignalHandlers]:
    """Delay handlers that the script sets until `SignalHandlers.agree`."""
    handlers = SignalHandlers(world)
    with ExitStack() as stack:
        stack.callback(handlers.restore)
        hooks = {
            declarations.SET_SIGNAL: instead(handlers.set),
            declarations.GET_SIGNAL: instead(handlers.get),
            declarations.RAISE_SIGNAL: instead(handlers.raise_signal),
            declarations.KILL: instead(handlers.send),
        }
        stack.enter_context(attached_all(hooks))
        yield handlers
