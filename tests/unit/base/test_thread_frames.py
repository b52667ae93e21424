"""The frames of another thread are read while that thread runs."""

import gc
import sys
import threading

import pytest

from samestep.base.worker_records import frames_of

DEPTH = 40


@pytest.fixture
def waiting():
    """Return a thread that waits in a deep recursion."""
    is_deep, may_end = threading.Event(), threading.Event()

    def descend(depth):
        if depth:
            descend(depth - 1)
        else:
            is_deep.set()
            may_end.wait()

    thread = threading.Thread(target=descend, args=(DEPTH,))
    thread.start()
    is_deep.wait()
    yield thread
    may_end.set()
    thread.join()


def names(thread):
    """Return the names of a thread's functions, innermost first."""
    return [frame.f_code.co_name for frame in frames_of(thread.ident)]


def test_frames_of_a_thread_are_those_of_its_calls(waiting):
    assert names(waiting).count("descend") == DEPTH + 1


def test_a_thread_that_has_ended_has_no_frames():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

    assert names(thread) == []
    assert frames_of(None) == []


def test_no_garbage_is_collected_while_frames_are_read(waiting):
    collecting = []

    def record(_phase, _info):
        collecting.append(sys._getframe(1).f_code.co_name)

    before = gc.get_threshold()
    gc.callbacks.append(record)
    gc.set_threshold(1)
    try:
        frames_of(waiting.ident)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(record)

    assert "frames_of" not in collecting
    assert gc.isenabled()


def test_disabled_collection_stays_disabled(waiting):
    gc.disable()
    try:
        frames_of(waiting.ident)
        assert not gc.isenabled()
    finally:
        gc.enable()
