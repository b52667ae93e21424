"""A step clock splits time into phases and loses none of it."""

from samestep.measure.clock import HostClock


def test_phases_of_a_step_add_up_and_the_next_step_begins_where_it_ended():
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0])
    clock = HostClock(now=lambda: next(times))

    clock.start()
    for _ in range(2):
        clock.mark()
        clock.mark()
        clock.step_done()

    assert clock.drain() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert clock.drain() == []
