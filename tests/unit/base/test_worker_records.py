"""The stacks of workers that a fatal signal ended are read."""

import ctypes
import os

from samestep.base.worker_records import Frame, StackDumps, parse_main_frames

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
