"""Turns, with a clock that is told what to say."""

from samestep.ranks.world.solo import SoloWorld
from samestep.studies.bench.interleaving import in_rounds, timed_interleaved


class Machine:
    """A clock that calls move on."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def call(self, name, seconds):
        def take(number):
            self.log.append((name, number))
            self.now += seconds

        return take

    def time(self, calls, **wishes):
        self.log.clear()
        return timed_interleaved(
            SoloWorld(),
            calls,
            **{"rounds": None, "seconds": 1.0, "finish": int, "clock": lambda: self.now} | wishes,
        )


def test_each_round_begins_with_another():
    assert "".join(in_rounds("abc", 4)) == "abcbcacababc"


def test_long_calls_are_timed_one_by_one_interleaved_after_two_warm_up_rounds():
    machine = Machine()
    times = machine.time({"a": machine.call("a", 0.25), "b": machine.call("b", 0.5)}, rounds=2)

    assert times == {"a": [0.25, 0.25], "b": [0.5, 0.5]}
    assert [name for name, _ in machine.log] == list("abab" + "ab" + "ba")


def test_short_calls_are_timed_many_at_a_time():
    machine = Machine()
    times = machine.time({"a": machine.call("a", 2.0**-13)}, rounds=1)

    assert times == {"a": [2.0**-13]}
    assert machine.log[-8:] == [("a", number) for number in range(8)]


def test_the_first_call_does_not_say_how_many_there_are():
    machine = Machine()
    fast = machine.call("a", 2.0**-13)

    def slow_at_first(number):
        machine.now += 0 if machine.log else 5.0
        fast(number)

    machine.time({"a": slow_at_first}, rounds=1)
    assert len(machine.log) == 1 + 1 + 8 + 8


def test_rounds_fill_the_seconds_but_are_three_at_least():
    machine = Machine()
    assert len(machine.time({"a": machine.call("a", 0.125)})["a"]) == 8
    assert len(machine.time({"a": machine.call("a", 2.0)})["a"]) == 3
