"""Calls are timed in interleaved rounds, with a simulated clock."""

from samestep.bench.measurement import in_rounds, timed_interleaved
from samestep.ranks.world.protocol import SoloWorld


class SimulatedClock:
    """A clock that advances by the duration of each call."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def call(self, name, seconds):
        def take(number):
            self.log.append((name, number))
            self.now += seconds

        return take

    def time(self, calls, **options):
        self.log.clear()
        return timed_interleaved(
            SoloWorld(),
            calls,
            **{"seconds": 1.0, "finish": int, "clock": lambda: self.now} | options,
        )


def test_each_round_begins_with_another_call():
    assert "".join(in_rounds("abc", 4)) == "abcbcacababc"


def test_long_calls_are_timed_one_by_one_interleaved_after_two_warm_up_rounds():
    clock = SimulatedClock()
    times = clock.time({"a": clock.call("a", 0.25), "b": clock.call("b", 0.5)}, seconds=0)

    assert times == {"a": [0.25] * 3, "b": [0.5] * 3}
    assert [name for name, _ in clock.log] == list("abab" + "ab" + "ba" + "ab")


def test_short_calls_are_timed_in_groups():
    clock = SimulatedClock()
    times = clock.time({"a": clock.call("a", 2.0**-13)}, seconds=0)

    assert times == {"a": [2.0**-13] * 3}
    assert clock.log[-8:] == [("a", number) for number in range(8)]


def test_the_first_call_does_not_determine_the_size_of_groups():
    clock = SimulatedClock()
    fast = clock.call("a", 2.0**-13)

    def slow_at_first(number):
        clock.now += 0 if clock.log else 5.0
        fast(number)

    clock.time({"a": slow_at_first}, seconds=0)
    assert len(clock.log) == 1 + 1 + 8 + 3 * 8


def test_rounds_fill_the_given_time_and_are_at_least_three():
    clock = SimulatedClock()
    assert len(clock.time({"a": clock.call("a", 0.125)})["a"]) == 8
    assert len(clock.time({"a": clock.call("a", 2.0)})["a"]) == 3
