"""A single worker that neither computes nor goes on is ended."""

import queue
import threading
import time

import pytest

from samestep.ranks.hang.watchdog import IdleWatch


@pytest.fixture
def watched():
    """Run a function under the watch; return the lines at which it was idle."""

    def run(work):
        lines = []
        with IdleWatch(0.6, lines.append):
            work()
        return lines

    return run


def test_a_worker_that_waits_is_idle_at_its_line(watched):
    def block():
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=4)

    lines = watched(block)

    assert lines
    assert f"{__file__}:{block.__code__.co_firstlineno + 2}: " in lines[0]


def test_a_worker_that_computes_is_not_idle(watched):
    def compute():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sum(range(1000))

    assert watched(compute) == []


def test_a_worker_whose_other_thread_computes_is_not_idle(watched):
    end = time.monotonic() + 2

    def compute():
        while time.monotonic() < end:
            sum(range(1000))

    def wait():
        other = threading.Thread(target=compute)
        other.start()
        other.join()

    assert watched(wait) == []
