"""Ranks read the times of rank 0 where they run the same line, and their own times elsewhere."""

import threading
import urllib.request
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

import samestep
from samestep.autopilot.script.common_times import CommonTimes

DOWNLOAD = urllib.request.__file__
TORCH = torch.nn.modules.module.__file__


class Store:
    """A store in memory; `late` stores what comes while a rank waits."""

    def __init__(self):
        self.values, self.late, self.waits = {"calls": b"0"}, lambda: None, 0

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout: timedelta):
        self.waits += 1
        self.late()
        if keys[0] not in self.values:
            raise RuntimeError("timeout")

    def delete_key(self, key):
        return self.values.pop(key, None) is not None


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def ranks(store):
    """Rank 0, and another rank whose clock is 100 behind."""
    return tuple(
        CommonTimes(
            store, is_main=is_main, offsets={} if is_main else {"time": 100.0}, is_stuck=lambda: False
        )
        for is_main in (True, False)
    )


def run(times, text, now, file="/home/ada/train.py"):
    """Run a script that reads the clock by `clock()`; return its variables."""

    def clock():
        return times.read("time", lambda: now)

    names = {"__name__": "__main__", "clock": clock}
    exec(compile(text, file, "exec"), names)
    return SimpleNamespace(**{name: value for name, value in names.items() if name != "__builtins__"})


def test_all_ranks_read_the_times_of_rank_0(ranks):
    text = "first = clock()\nboth = clock(), clock()\ndef nested():\n    return clock()\nlast = nested()"
    main, other = (run(times, text, now) for times, now in zip(ranks, (0.1, 7.5), strict=True))

    assert (
        (other.first, other.both, other.last) == (main.first, main.both, main.last) == (0.1, (0.1, 0.1), 0.1)
    )


def test_times_keep_their_type_and_bits(ranks):
    numbers = [1e9 + 0.1 + 0.2, 2**62 + 1]
    assert [ranks[0].common("here", one) for one in numbers] == numbers
    found = [ranks[1].common("here", type(one)(5)) for one in numbers]
    assert found == numbers
    assert [type(one) for one in found] == [float, int]


def test_a_rank_waits_for_rank_0_and_rank_0_for_no_rank(ranks, store):
    main, other = ranks
    store.late = lambda: main.common("here", 3.0) if store.waits == 2 else None

    assert other.common("here", 9.0) == 3.0
    assert store.waits == 2


def test_a_read_that_rank_0_has_passed_is_of_the_own_clock(ranks, store):
    main, other = ranks
    main.advance()

    assert other.common("only here", 9.0, 100.0) == 109.0
    assert other.common("only here", 9, 100.0) == 109
    other.advance()
    main.common("both", 4.0)
    assert other.common("both", 9.0) == 4.0


def test_a_line_that_rank_0_does_not_run_is_not_waited_for_permanently(ranks, store):
    main, other = ranks
    main.advance()
    for _ in range(10):
        other.common("only here", 9.0)

    assert store.waits == 3


def test_a_rank_does_not_wait_for_one_that_waits_for_it(store):
    other = CommonTimes(store, is_main=False, offsets={}, is_stuck=lambda: True)

    assert other.common("here", 9.0) == 9.0


def test_a_store_that_is_gone_is_no_error(ranks, store):
    store.wait = store.get = lambda *_: (_ for _ in ()).throw(RuntimeError("connection closed"))

    assert ranks[1].common("here", 9.0) == 9.0


def test_old_times_are_deleted(ranks, store):
    for _ in range(1000):
        ranks[0].common("here", 1.0)
        ranks[0].advance()

    assert len(store.values) < 300


@pytest.mark.parametrize("library", [TORCH, DOWNLOAD])
def test_functions_that_a_library_calls_read_their_own_clock(ranks, library):
    """Such as a forward, or the progress of a download, which only rank 0 makes."""
    text = f"""
def function():
    return clock()
names = {{"function": function}}
exec(compile("found = function()", {library!r}, "exec"), names)
found = names["found"]
"""
    main, other = (run(times, text, now) for times, now in zip(ranks, (1.0, 7.0), strict=True))

    assert (main.found, other.found) == (1.0, 7.0)


def test_libraries_and_other_threads_read_their_own_clock(ranks, store):
    run(ranks[0], "clock()", 1.0)
    stored = dict(store.values)

    assert run(ranks[0], "found = clock()", 2.0, file=TORCH).found == 2.0
    thread = threading.Thread(target=run, args=(ranks[0], "clock()", 3.0))
    thread.start()
    thread.join()
    assert store.values == stored


def test_no_time_is_common_after_the_end_of_the_script(ranks, store):
    """samestep calls the functions of `atexit`, without a line of the script."""
    function = run(ranks[0], "def function():\n    return clock()", 1.0).function
    exec(compile("function()", samestep.__file__, "exec"), {"function": function})

    assert list(store.values) == ["calls"]
