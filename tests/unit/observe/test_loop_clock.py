"""A step clock splits all time of a step into phases."""

from samestep.base.step_phases import ALL
from samestep.observe.instants import HostInstants
from samestep.observe.step_reader import LoopClock


def test_phases_of_a_step_add_up_and_the_next_step_begins_at_its_end():
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0])
    clock = LoopClock(HostInstants(lambda: next(times)))

    clock.start()
    for _ in range(2):
        clock.mark("data")
        clock.mark("forward")
        clock.mark("optimizer")
        clock.step_done()

    nothing = dict.fromkeys(ALL, 0.0)
    assert clock.drain() == [
        nothing | {"data": 1.0, "forward": 2.0, "optimizer": 3.0},
        nothing | {"data": 4.0, "forward": 5.0, "optimizer": 6.0},
    ]
    assert clock.drain() == []


def test_a_phase_marked_twice_counts_both_times():
    times = iter([0.0, 1.0, 3.0, 6.0])
    clock = LoopClock(HostInstants(lambda: next(times)))

    clock.start()
    for phase in ("forward", "backward", "forward"):
        clock.mark(phase)
    clock.step_done()

    assert clock.drain()[0] == dict.fromkeys(ALL, 0.0) | {"forward": 4.0, "backward": 2.0}


def test_start_discards_an_unfinished_step():
    times = iter([0.0, 5.0, 6.0])
    clock = LoopClock(HostInstants(lambda: next(times)))

    clock.start()
    clock.start()
    clock.mark("data")
    clock.step_done()

    assert clock.drain()[0]["data"] == 1.0
