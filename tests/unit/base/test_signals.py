import os
import signal
import threading

import pytest

from samestep.base.errors import INTERRUPTED
from samestep.base.signals import ended_by_interrupt


@pytest.fixture(autouse=True)
def _handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def within():
    with ended_by_interrupt():
        return signal.getsignal(signal.SIGINT)


def test_an_interrupt_of_the_block_ends_the_process_with_a_line():
    read, write = os.pipe()
    if not (child := os.fork()):
        os.dup2(write, 2)
        with ended_by_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)
    os.close(write)
    with os.fdopen(read) as stderr:
        assert len(stderr.readlines()) == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == INTERRUPTED


def test_after_the_block_an_interrupt_is_an_exception():
    within()
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
