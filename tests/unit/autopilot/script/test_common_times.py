"""Ranks read the times of rank 0 where they run the same line, and their own times elsewhere."""

import mmap
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

import samestep
from samestep.autopilot.script.common_times import CommonTimes
from samestep.autopilot.script.published_times import BYTES, TimesInMemory, TimesInStore

DOWNLOAD = urllib.request.__file__
TORCH = torch.nn.modules.module.__file__


class Store:
    """A store in memory."""

    def __init__(self):
        self.values, self.waits = {"calls": b"0"}, 0

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout: timedelta):
        self.waits += 1
        if keys[0] not in self.values:
            time.sleep(0.01)
            raise RuntimeError("timeout")

    def delete_key(self, key):
        return self.values.pop(key, None) is not None


@pytest.fixture
def store():
    return Store()


@pytest.fixture(params=["memory", "store"])
def ranks(request, store):
    """Rank 0, and another rank, whose clock is 100 behind."""
    if request.param == "memory":
        memory = mmap.mmap(-1, BYTES)
        ways = [TimesInMemory(memory, lambda: False) for _ in range(2)]
    else:
        ways = [TimesInStore(store, lambda: False) for _ in range(2)]
    main = CommonTimes(ways[0], is_main=True, offsets={})
    return main, CommonTimes(ways[1], is_main=False, offsets={"time": 100.0})


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


def test_all_ranks_read_several_figures_of_a_device_at_once(ranks):
    text = "both = memory(0), memory(1)"
    found = []
    for number, times in enumerate(ranks):
        names = {"__name__": "__main__"}
        names["memory"] = lambda device, of=times, own=number: of.read(
            "mem_get_info", lambda device: (device + own, 2**40 + own), device
        )
        exec(compile(text, "/home/ada/train.py", "exec"), names)
        found.append(names["both"])

    assert found == [((0, 2**40), (1, 2**40))] * 2


def test_a_rank_waits_for_rank_0_and_rank_0_for_no_rank(ranks):
    main, other = ranks
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.common, "here", 9.0)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        main.common("here", 3.0)
        assert waiting.result(10) == 3.0


def test_a_read_that_rank_0_has_passed_is_of_the_own_clock(ranks):
    main, other = ranks
    main.advance()

    assert other.common("only here", 9.0, 100.0) == 109.0
    assert other.common("only here", 9, 100.0) == 109
    other.advance()
    main.common("both", 4.0)
    assert other.common("both", 9.0) == 4.0


def test_a_line_that_rank_0_does_not_run_is_not_waited_for_permanently(store):
    TimesInStore(store, lambda: False).begin(1)
    other = CommonTimes(TimesInStore(store, lambda: False), is_main=False, offsets={})
    for _ in range(10):
        other.common("only here", 9.0)

    assert store.waits == 3


@pytest.mark.parametrize("way", [TimesInMemory, TimesInStore])
def test_a_rank_does_not_wait_for_one_that_waits_for_it(store, way):
    place = mmap.mmap(-1, BYTES) if way is TimesInMemory else store
    other = CommonTimes(way(place, lambda: True), is_main=False, offsets={})

    assert other.common("here", 9.0) == 9.0


def test_a_store_that_is_gone_is_no_error(store):
    store.wait = store.get = lambda *_: (_ for _ in ()).throw(RuntimeError("connection closed"))
    other = CommonTimes(TimesInStore(store, lambda: False), is_main=False, offsets={})

    assert other.common("here", 9.0) == 9.0


def test_old_times_are_deleted(store):
    main = CommonTimes(TimesInStore(store, lambda: False), is_main=True, offsets={})
    for _ in range(1000):
        main.common("here", 1.0)
        main.advance()

    assert len(store.values) < 300


def test_a_rank_that_is_a_ring_behind_reads_later_times(ranks):
    main, other = ranks
    for number in range(20_000):
        main.common("ahead", float(number))
    main.advance()
    other.advance()
    main.common("here", 3.0)

    assert other.common("here", 9.0) == 3.0


def test_reads_that_only_one_rank_makes_do_not_shift_the_others(ranks):
    main, other = ranks
    main.common("only on rank 0", 1.0)
    main.common("here", 3.0)
    main.common("here", 4.0)

    assert [other.common("here", 9.0) for _ in range(2)] == [3.0, 4.0]


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


def test_libraries_and_other_threads_read_their_own_clock(store):
    main = CommonTimes(TimesInStore(store, lambda: False), is_main=True, offsets={})
    run(main, "clock()", 1.0)
    stored = dict(store.values)

    assert run(main, "found = clock()", 2.0, file=TORCH).found == 2.0
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, main, "clock()", 3.0).result()
    assert store.values == stored


def test_no_time_is_common_after_the_end_of_the_script(store):
    """samestep calls the functions of `atexit`, without a line of the script."""
    main = CommonTimes(TimesInStore(store, lambda: False), is_main=True, offsets={})
    function = run(main, "def function():\n    return clock()", 1.0).function
    exec(compile("function()", samestep.__file__, "exec"), {"function": function})

    assert list(store.values) == ["calls"]
