"""The marks of a step that never ends have bounded memory."""

from samestep.base.step_phases import BACKWARD, DATA, OTHER, TO_DEVICE
from samestep.observe.clock import instants
from samestep.observe.clock.cpu_contention import ContentionEstimator
from samestep.observe.clock.instants import ClockedStep, HostInstants
from support.clocked_scripts import ticking_phases


def line(marks):
    return ClockedStep(0, marks, 4, evaluated=False).line(HostInstants(), ContentionEstimator())


def test_marks_of_a_step_that_never_ends_are_dropped_and_its_time_is_kept(monkeypatch):
    monkeypatch.setattr(instants, "MAX_MARKS", 20)
    seen = ticking_phases()(0.0)
    for _ in range(100):
        seen.switch(DATA)
        seen.mark(TO_DEVICE)
        seen.switch(OTHER)
    seen.switch(BACKWARD)
    marks, _ = seen.cut()
    assert len(marks) <= 22
    written = line(marks)
    assert (marks[1], written["seconds"], written[BACKWARD]) == (0.0, 302.0, 1.0)
    seen.switch(DATA)
    assert line(seen.cut()[0])[DATA] == 1.0
