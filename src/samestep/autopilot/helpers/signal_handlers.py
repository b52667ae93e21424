"""Delays the script's signal handlers while a call is split.

Python calls a handler between any two instructions of the main thread. A handler may raise an error, to limit
a time; call a model; or fork. Between instructions of an exchange with the helpers, its error would be taken
for an error of the call, or be lost in a finalizer, and its call of a model would take part in the exchange.

Such a handler is called at the end of the call, or where the script's own code goes on before, which may be
that of a forward or of a hook on a gradient: for that, a thread sends the signal again and again.
"""

import _thread
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch import nn

from samestep.autopilot.script.call_account import is_users_code
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split_calls import SplitsCalls
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_LONGEST_S = 2.0
"""Seconds for which a handler is delayed at most: a lost helper is waited for much longer."""
_PAUSE_S = 0.0005
"""Seconds until a signal is sent again: a guess."""
_EXCHANGES = str(Path(__file__).parent) + os.sep
_FINALIZER = weakref.finalize.__call__.__code__
"""Python prints an error that a finalizer raises, and goes on."""


class SignalHandlers:
    """The handlers of Python code; the main thread has them."""

    def __init__(
        self,
        install: Callable[[int, Any], Any] = signal.signal,
        installed: Callable[[int], Any] = signal.getsignal,
    ) -> None:
        self._install, self._installed = install, installed
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._handlers: dict[int, Handler] = {}
        self._since: dict[int, float] = {}
        """When a signal arrived whose handler is delayed."""
        self._sends = threading.Lock()
        """Held while a signal is sent again, and while its handler is replaced."""
        self._sent: set[int] = set()
        """The signals that were sent again, and have not arrived."""

    def delay_all(self) -> None:
        """Delay the handlers that there are."""
        for number in signal.valid_signals():
            handler = self._installed(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self.set(number, handler)

    def set(self, number: int, handler: Any) -> Any:
        """Set a handler; replaces `signal.signal`."""
        is_function = callable(handler) and not isinstance(handler, signal.Handlers)
        self._settle(number)
        before = self.get(number)
        with self._sending():
            installed = self._install(number, self._called if is_function else handler)
        if is_function:
            self._handlers[int(number)] = handler
        return before if installed == self._called else installed

    def get(self, number: int) -> Any:
        """Return the handler that is set; replaces `signal.getsignal`."""
        installed = self._installed(number)
        return self._handlers[int(number)] if installed == self._called else installed

    def _called(self, number: int, frame: FrameType | None) -> Any:
        """Call a handler, or delay it."""
        if number in self._sent:
            self._sent.discard(number)
            if number not in self._since:  # the handler has been called
                return None
        since = self._since.setdefault(number, time.monotonic())
        is_late = time.monotonic() - since > _LONGEST_S
        if is_late or os.getpid() != self._process or not _is_in_exchange(frame) or _has_event_loop():
            return self._call(number, frame)
        _thread.start_new_thread(self._send_again, (number,))
        return None

    def _call(self, number: int, frame: FrameType | None) -> Any:
        del self._since[number]
        return self._handlers[number](number, frame)

    def _settle(self, number: int) -> None:
        """Call a handler that is delayed, before it is replaced."""
        if number in self._since:
            self._call(number, sys._getframe(2))  # noqa: SLF001 - as Python

    def call_delayed(self, frame: FrameType) -> None:
        """Call the handlers that are delayed, if the script's code goes on after this frame.

        A script that does little between its calls is hardly ever there when a signal is sent again.
        """
        if not self._since or threading.get_ident() != self._thread or os.getpid() != self._process:
            return
        if not _is_in_exchange(frame):
            for number in list(self._since):
                self._call(number, frame)

    def _send_again(self, number: int) -> None:
        time.sleep(_PAUSE_S)
        with self._sends:
            if number in self._since and self._installed(number) == self._called:
                self._sent.add(number)
                # To the thread, which may have begun to wait for something.
                signal.pthread_kill(self._thread, number)

    def _sending(self) -> AbstractContextManager[Any]:
        """Let no thread send a signal in the block; a forked process has no such thread."""
        return self._sends if os.getpid() == self._process else nullcontext()

    def restore(self) -> None:
        """Install the handlers themselves."""
        for number, handler in self._handlers.items():
            if self._installed(number) == self._called:
                self._settle(number)
                with self._sending():
                    self._install(number, handler)


def _has_event_loop() -> bool:
    """Return whether this thread has an event loop, to which Python reports each signal that is sent."""
    file = signal.set_wakeup_fd(-1)
    if file >= 0:
        signal.set_wakeup_fd(file)
    return file >= 0


def _is_in_exchange(frame: FrameType | None) -> bool:
    """Return whether code of this folder, or a finalizer, runs inside of the innermost code of the script."""
    while frame is not None:
        code = frame.f_code
        if code is _FINALIZER or code.co_filename.startswith(_EXCHANGES):
            return True
        if is_users_code(code, frame.f_globals):
            return False
        frame = frame.f_back
    return False


def is_of_signal(error: BaseException) -> bool:
    """Return whether the handler of a signal has raised an error: it is not the call's own."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    codes.add(SignalHandlers._call.__code__)  # noqa: SLF001 - a partial, say, has no code of its own
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in frames)


class CallsBeforeHandlers:
    """Splits calls of modules, after each of which the handlers are called that were delayed within it."""

    def __init__(self, calls: SplitsCalls, handlers: SignalHandlers) -> None:
        self._calls, self._handlers = calls, handlers

    @property
    def gradients(self) -> Any:
        """See `SplitsCalls.gradients`."""
        return self._calls.gradients

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module."""
        outputs = self._calls(forward, module, args, kwargs)
        self._handlers.call_delayed(sys._getframe(1))  # noqa: SLF001 - as Python
        return outputs


@contextmanager
def delayed_handlers() -> Iterator[SignalHandlers]:
    """Delay handlers of signals, in the block, until the script's code goes on."""
    handlers = SignalHandlers()
    if threading.current_thread() is not threading.main_thread():
        yield handlers  # Python calls none on this thread
        return
    hooks = {
        declarations.SET_HANDLER: wrapping(lambda _, signalnum, handler: handlers.set(signalnum, handler)),
        declarations.GET_HANDLER: wrapping(lambda _, signalnum: handlers.get(signalnum)),
    }
    handlers.delay_all()
    try:
        with attached_all(hooks):
            yield handlers
    finally:
        handlers.restore()
