"""Handlers of signals run in the script's code, not within an exchange with helpers or a finalizer."""

import os
import pickle
import signal
import sys
import weakref
from functools import partial

import pytest

from samestep.autopilot.helpers import signal_handlers
from samestep.autopilot.helpers.signal_handlers import CallsBeforeHandlers, delayed_handlers, is_of_signal


class Late(Exception):
    pass


class Held:
    pass


def raise_late(*_):
    raise Late


@pytest.fixture(autouse=True)
def keeps_the_handler():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.fixture
def delayed():
    before = signal.getsignal(signal.SIGUSR1)
    with delayed_handlers():
        yield
        signal.signal(signal.SIGUSR1, before)


def exchange(code, **names):
    """Run code as if it were in a file of the folder of helpers."""
    exec(compile(code, signal_handlers.__file__, "exec"), {"SIGUSR1": signal.SIGUSR1, **names})


def send_within_exchange():
    exchange("send(SIGUSR1)", send=signal.raise_signal)


def until_error(call):
    call()
    while True:
        pass


def test_a_replaced_function_takes_its_keywords_and_can_be_pickled(delayed):
    """As `Pool(initializer=signal.signal)` needs where a worker is not forked."""
    signal.signal(handler=raise_late, signalnum=signal.SIGUSR1)
    assert signal.getsignal(signalnum=signal.SIGUSR1) is raise_late
    assert pickle.loads(pickle.dumps([signal.signal, signal.getsignal])) == [signal.signal, signal.getsignal]


def test_the_error_of_a_handler_is_not_lost_in_a_finalizer(delayed):
    """Only this finds a limit of time that never ends the script's loop: its error is printed and ignored."""
    held = [Held()]
    weakref.finalize(held[0], signal.raise_signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, raise_late)
    with pytest.raises(Late):
        until_error(held.clear)


def test_no_handler_interrupts_a_split_call(delayed):
    """Only this finds an exchange that a handler's error ends half-way."""
    ran, ended = [], []
    signal.signal(signal.SIGUSR1, lambda *_: ran.append(len(ended)))

    exchange("send(SIGUSR1)\nended.append(1)", send=signal.raise_signal, ended=ended)
    while not ran:
        pass
    assert ran == [1]


def test_a_handler_that_is_delayed_is_called_at_the_end_of_the_call():
    """Only this finds a loop of calls whose timers have no effect for seconds."""
    ran = []
    with delayed_handlers() as handlers:
        before = signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))
        calls = CallsBeforeHandlers(lambda *_: send_within_exchange(), handlers)
        handlers._send_again = lambda _number: None
        calls(None, None, (), {})
        assert ran == [1]
        exchange("calls(None, None, (), {})", calls=calls)
        assert ran == [1], "a call within an exchange"
        handlers.call_delayed(sys._getframe())
        assert ran == [1, 1]
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_is_called_once_for_a_signal_that_is_sent_again_too_late():
    """Only this finds a second call of a handler, for a signal that was sent as the first one began."""
    ran = []
    with delayed_handlers() as handlers:
        before = signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))
        send_within_exchange()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        while signal.SIGUSR1 not in signal.sigpending():
            pass
        handlers.call_delayed(sys._getframe())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        assert ran == [1]
        signal.raise_signal(signal.SIGUSR1)
        assert ran == [1, 1]
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_runs_at_once_in_the_scripts_code_within_a_call(delayed):
    """Only this finds a forward that waits in vain for what a handler sets."""
    ran = []
    signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))

    def forward():
        signal.raise_signal(signal.SIGUSR1)
        assert ran == [1]

    exchange("forward()", forward=forward)
    assert ran == [1]


def test_a_handler_that_is_delayed_is_called_before_it_is_replaced(delayed):
    """Only this finds a lost signal, or one that ends the process, as its handler was removed meanwhile."""
    ran = []
    signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))
    send_within_exchange()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert ran == [1]


def test_a_script_sees_its_own_handlers(delayed):
    """Only this finds a script that chains handlers, and calls samestep's instead of its own."""
    assert signal.signal(signal.SIGUSR1, raise_late) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is raise_late
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is raise_late
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [raise_late, partial(raise_late)], ids=["function", "partial"])
def test_an_error_of_a_handler_is_known_as_one(delayed, handler):
    """Only this finds a limit of time that counts as an error of the model, so that the script goes on."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(Late) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert is_of_signal(raised.value)
    assert not is_of_signal(Late())


def test_a_forked_process_calls_its_handlers_at_once(delayed):
    """Only this finds a fork in which no thread sends the signal again."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    child = os.fork()
    if not child:
        send_within_exchange()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
