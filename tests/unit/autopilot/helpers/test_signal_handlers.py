"""Handlers of signals run in the script's code, not within an exchange with helpers or a finalizer."""

import os
import signal
import weakref

import pytest

from samestep.autopilot.helpers import signal_handlers
from samestep.autopilot.helpers.signal_handlers import delayed_handlers


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


def test_a_forked_process_calls_its_handlers_at_once(delayed):
    """Only this finds a fork in which no thread sends the signal again."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    child = os.fork()
    if not child:
        send_within_exchange()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
