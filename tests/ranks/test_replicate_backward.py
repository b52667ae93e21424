"""The top-level backward is stored per thread, and no reference to it leaks."""

import gc
import sys
import threading
import weakref

import pytest

from samestep.hooks import backward


@pytest.fixture
def other_thread():
    """Run a function on a thread of its own, to its end."""

    def run(fn):
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()

    return run


def test_storing_a_backward_keeps_no_reference():
    outermost = backward.TopLevelBackward()
    before = sys.getrefcount(outermost)
    for _ in range(50):
        backward._set_current(outermost)
        assert backward._get_current() is outermost
        backward._set_current(None)
    assert sys.getrefcount(outermost) == before


def test_a_thread_has_no_access_to_another_threads_backward(other_thread):
    outermost, seen = backward.TopLevelBackward(), []
    backward._set_current(outermost)
    other_thread(lambda: seen.append(backward._get_current()))
    backward._set_current(None)
    assert seen == [None]


def test_a_thread_that_ends_frees_its_slot(other_thread):
    slots = []

    def run():
        backward._set_current(backward.TopLevelBackward())
        slots.append(weakref.ref(backward._slot()))
        backward._set_current(None)

    for _ in range(3):
        other_thread(run)
    gc.collect()
    assert [slot() for slot in slots] == [None] * 3
