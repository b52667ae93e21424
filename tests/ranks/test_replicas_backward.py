"""The outermost backward is remembered per thread, without a trace in the memory of the process."""

import gc
import sys
import threading
import weakref

import pytest

from samestep.replicas import backward


@pytest.fixture
def other_thread():
    """Run a function on a thread of its own, to its end."""

    def run(fn):
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()

    return run


def test_remembering_gives_back_as_many_references_as_it_takes():
    outermost = backward.Backward()
    before = sys.getrefcount(outermost)
    for _ in range(50):
        backward._remember(outermost)
        assert backward._recall() is outermost
        backward._remember(None)
    assert sys.getrefcount(outermost) == before


def test_a_thread_sees_its_own_backward_alone(other_thread):
    outermost, seen = backward.Backward(), []
    backward._remember(outermost)
    other_thread(lambda: seen.append(backward._recall()))
    backward._remember(None)
    assert seen == [None]


def test_a_thread_that_ends_leaves_nothing_behind(other_thread):
    slots = []

    def run():
        backward._remember(backward.Backward())
        slots.append(weakref.ref(backward._slot()))
        backward._remember(None)

    for _ in range(3):
        other_thread(run)
    gc.collect()
    assert [slot() for slot in slots] == [None] * 3
