import signal
import threading

import pytest

from samestep.base.signals import ended_by_interrupt


@pytest.fixture(autouse=True)
def _handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def within():
    with ended_by_interrupt():
        return signal.getsignal(signal.SIGINT)


def test_an_interrupt_of_the_block_ends_the_process():
    assert within() is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_another_handler_stays(handler):
    signal.signal(signal.SIGINT, handler)
    assert within() is handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_changes_no_handler():
    found = []
    thread = threading.Thread(target=lambda: found.append(within()))
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
