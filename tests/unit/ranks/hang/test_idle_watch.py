"""A single worker that neither computes nor changes its line is reported as idle."""

import queue
import subprocess
import sys
import threading
import time

import pytest

from samestep.base.folders import shown
from samestep.ranks.hang.watchdog import IdleWatch


@pytest.fixture
def watched():
    """Return a function that runs another one under the watch, and returns the lines at which it was idle."""

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
    assert f"{shown(__file__)}:{block.__code__.co_firstlineno + 2}: " in lines[0]


def test_a_worker_that_computes_is_not_idle(watched):
    def compute():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sum(range(1000))

    assert watched(compute) == []


def test_a_worker_is_not_idle_while_another_thread_computes(watched):
    end = time.monotonic() + 2

    def compute():
        while time.monotonic() < end:
            sum(range(1000))

    def wait():
        other = threading.Thread(target=compute)
        other.start()
        other.join()

    assert watched(wait) == []


@pytest.mark.parametrize("computes", [True, False])
def test_a_worker_that_waits_for_a_child_process_is_idle_only_if_that_does_not_compute(watched, computes):
    work = "pass" if computes else "time.sleep(0.02)"
    script = f"import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: {work}"

    lines = watched(lambda: subprocess.run([sys.executable, "-S", "-c", script], check=True))

    assert bool(lines) != computes
