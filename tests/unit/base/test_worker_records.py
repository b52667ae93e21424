"""The stacks of workers that a fatal signal ended are read."""

import ctypes
import gc
import os
import sys
import threading

import pytest

from samestep.base.worker_records import Frame, StackDumps, frames_of, parse_main_frames

DUMP = """\
main thread 0x7f01
Fatal Python error: Aborted

Thread 0x00007f02 (most recent call first):
  File "watch.py", line 3 in run

Current thread 0x00007f01 (most recent call first):
  File "torch/distributed/distributed_c10d.py", line 9 in all_reduce
  File "a folder/train.py", line 12 in <module>

Extension modules: numpy (total: 1)
"""


def test_the_frames_of_the_main_thread_are_parsed():
    assert parse_main_frames(DUMP) == [
        Frame("torch/distributed/distributed_c10d.py", 9, "all_reduce"),
        Frame("a folder/train.py", 12, "<module>"),
    ]
    alone = 'Stack (most recent call first):\n  File "train.py", line 7 in step\n'
    assert parse_main_frames(DUMP + alone) == [Frame("train.py", 7, "step")]
    assert parse_main_frames("") == []
    assert parse_main_frames("main thread 0x7f01\n") == []


def crash():
    ctypes.string_at(0)


def test_a_crashed_process_writes_its_stack_and_its_children_write_none():
    dumps = StackDumps()
    dumps.add(0)
    dumps.add(1)
    pid = os.fork()
    if pid == 0:
        dumps.use_here(1)
        if (child := os.fork()) == 0:
            ctypes.string_at(0)
        os.waitpid(child, 0)
        crash()
    os.waitpid(pid, 0)

    assert dumps.main_frames(0) == []
    assert dumps.main_frames(1)[1] == Frame(__file__, crash.__code__.co_firstlineno + 1, "crash")
    dumps.close()


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
