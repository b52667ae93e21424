"""The marks of a step that never ends have bounded memory."""

from pathlib import Path

import pytest
import torch.distributed as dist

from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.base.step_phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER, OTHER, TO_DEVICE
from samestep.observe import instants
from samestep.observe.instants import (
    ClockedStep,
    ContentionEstimator,
    CpuUse,
    HostInstants,
    Phases,
    ThreadCpuClock,
    thread_cpu_clock,
)
from support.clocked_scripts import loader, plain, ticking_phases, train


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
    assert written[DATA] + written[TO_DEVICE] <= len(marks)  # those that are kept
    seen.switch(DATA)
    assert line(seen.cut()[0])[DATA] == 1.0


def seconds(**spent):
    return dict.fromkeys(STEP_PHASES, 0.0) | spent


def had(forward, backward):
    return {FORWARD: CpuUse(*forward), BACKWARD: CpuUse(*backward)}


def readings(forward, backward):
    both = CpuUse(*map(sum, zip(forward, backward, strict=True)))
    return [OTHER, CpuUse(), FORWARD, CpuUse(*forward), BACKWARD, both]


def test_delays_of_backward_are_communication_if_forward_has_none():
    step = seconds(forward=10.0, backward=30.0, exposed_sync=5.0)
    assert ContentionEstimator().of(step, had((10.0, 0.0), (24.0, 6.0))) == 6.0


def test_sleep_and_reads_are_not_communication():
    step = seconds(forward=10.0, backward=30.0, exposed_sync=5.0)
    assert ContentionEstimator().of(step, had((10.0, 0.0), (1.0, 0.0))) == 0.0  # 29 s asleep
    assert ContentionEstimator().of(step, had((1.0, 0.0), (30.0, 0.0))) == 0.0
    assert ContentionEstimator().of(step, had((0.0, 0.0), (0.0, 0.0))) == 0.0


def test_the_share_of_other_processes_in_forward_is_subtracted_in_backward():
    step = seconds(forward=15.0, backward=30.0, exposed_sync=5.0)
    assert ContentionEstimator().of(step, had((10.0, 5.0), (16.0, 14.0))) == pytest.approx(6.0)


def test_the_share_of_other_processes_is_averaged_over_steps():
    estimator = ContentionEstimator()
    for _ in range(50):
        estimator.of(seconds(forward=15.0, backward=15.0), had((10.0, 5.0), (10.0, 5.0)))
    by_chance = estimator.of(seconds(forward=10.0, backward=15.0), had((10.0, 0.0), (10.0, 5.0)))
    assert by_chance == pytest.approx(0.5, abs=0.01)


def test_communication_is_at_most_backward():
    step = seconds(forward=100.0, backward=30.0, exposed_sync=5.0)
    assert ContentionEstimator().of(step, had((10.0, 0.0), (0.0, 40.0))) == 30.0


def test_the_running_time_of_backward_is_not_communication_if_its_delay_is_longer():
    step = seconds(forward=100.0, backward=30.0, exposed_sync=40.0)  # copies within, with half of the delay
    assert ContentionEstimator().of(step, had((10.0, 0.0), (10.0, 50.0))) == pytest.approx(25.0)


def test_measured_waits_stay_communication_if_the_estimate_is_negative():
    estimator, delayed = ContentionEstimator(), readings((0.05, 0.05), (0.1, 0.08))
    for _ in range(3):
        step = ClockedStep(
            0,
            ["other", 0.0, FORWARD, 0.1, BACKWARD, 0.28, EXCHANGE, 0.30],
            8,
            evaluated=False,
            overlaps=True,
            readings=delayed,
        )
        line = step.line(HostInstants(lambda: 0.0), estimator)
        assert line["exposed_sync"] == pytest.approx(0.02)
        assert line["backward"] == pytest.approx(0.18)


def test_a_negative_estimate_is_subtracted_from_the_next_steps():
    estimator, step = ContentionEstimator(), seconds(forward=100.0, backward=100.0)
    assert estimator.of(step, had((10.0, 5.0), (10.0, 1.0))) == 0.0  # the estimate is -4
    assert estimator.of(step, had((1000.0, 0.0), (0.0, 3.0))) == 0.0
    assert estimator.of(step, had((1000.0, 0.0), (0.0, 3.0))) == pytest.approx(2.0)
    assert estimator.of(step, had((1000.0, 0.0), (0.0, 3.0))) == pytest.approx(3.0)


def test_phases_with_estimated_communication_add_up_to_the_step():
    marks = ["other", 0.0, FORWARD, 10.0, BACKWARD, 40.0, EXCHANGE, 45.0]
    read = readings((10.0, 0.0), (24.0, 6.0))
    step = ClockedStep(3, marks, 8, evaluated=False, overlaps=True, readings=read)
    line = step.line(HostInstants(lambda: 0.0), ContentionEstimator())
    assert (line["forward"], line["backward"], line["exposed_sync"], line["seconds"]) == (10, 24, 11, 45)


def test_the_cpu_time_of_each_computing_phase_is_counted_once():
    reading = iter([CpuUse(1.0, 1.0), CpuUse(3.0, 1.5), CpuUse(4.0, 1.5), CpuUse(9.0, 9.0)])
    phases = Phases(0.0)
    phases.switch(FORWARD)
    phases.switch(OTHER)
    assert phases.cut()[1] is None
    phases.begin_readings()
    for phase in (FORWARD, BACKWARD, EXCHANGE, OPTIMIZER):
        phases.cpu = next(reading, phases.cpu)
        phases.switch(phase)
    assert instants.cpu_use(phases.cut()[1]) == had((2.0, 0.5), (1.0, 0.0))
    phases.begin_readings()
    assert instants.cpu_use(phases.cut()[1]) == had((0.0, 0.0), (0.0, 0.0))
    assert phases.cut()[1] is None


def test_delays_during_communication_are_counted_once():
    phases = Phases(0.0)
    phases.begin_readings()
    phases.switch(FORWARD)
    for now, cpu, phase in ((5.0, (5, 0), BACKWARD), (10.0, (10, 0), EXCHANGE), (15.0, (11, 4), BACKWARD)):
        phases.instant, phases.cpu = now, CpuUse(*cpu)
        phases.switch(phase)
    phases.switch(OTHER)
    marks, read = phases.cut()
    step = ClockedStep(0, marks, 8, evaluated=False, overlaps=True, readings=read)
    line = step.line(HostInstants(lambda: 0.0), ContentionEstimator())
    assert (line["forward"], line["backward"], line["exposed_sync"], line["seconds"]) == (5, 5, 5, 15)


def test_readings_of_a_step_that_never_ends_are_dropped(monkeypatch):
    monkeypatch.setattr(instants, "MAX_MARKS", 20)
    phases = Phases(0.0)
    phases.begin_readings()
    for _ in range(100):
        phases.switch(FORWARD)
        phases.switch(OTHER)
    assert len(phases.cut()[1]) <= 22


def test_a_step_without_readings_gets_the_share_of_sampled_steps():
    estimator, step = ContentionEstimator(), seconds(forward=10.0, backward=30.0)
    assert estimator.of(step, None) == 0.0
    for _ in range(3):
        assert estimator.of(step, had((10.0, 0.0), (24.0, 6.0))) == 6.0
    assert estimator.of(seconds(forward=10.0, backward=20.0), None) == pytest.approx(4.0)


def test_the_first_steps_and_then_every_sixteenth_are_sampled():
    assert [step for step in range(-3, 33) if instants.is_sampled(step)] == [*range(-3, 8), 16, 32]


@pytest.mark.skipif(not instants._SCHEDSTAT.exists(), reason="this system has no such count")
def test_the_delay_is_read_from_schedstat_of_this_thread():
    def counted():
        return int(instants._SCHEDSTAT.read_text().split()[1]) / 1e9

    clock = ThreadCpuClock()
    before, reading, after = counted(), clock(), counted()
    assert before <= reading.delayed <= after
    assert reading.ran > 0


def test_without_schedstat_only_measured_waits_are_communication(clock, monkeypatch, tmp_path):
    monkeypatch.setattr(instants, "_SCHEDSTAT", tmp_path / "none")
    assert thread_cpu_clock() is None

    def script():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            model, optimizer = plain()
            model.weight.register_hook(lambda gradient: dist.all_reduce(gradient.clone()))
            train(model, optimizer, loader())
        finally:
            dist.destroy_process_group()

    _, lines, _ = clock(script, warm_up=1)
    assert [line["exposed_sync"] for line in lines] == [2, 2]  # in the hook, and when backward is at its end


@pytest.mark.skipif(not instants._SCHEDSTAT.exists(), reason="this system has no such count")
def test_schedstat_is_closed_with_the_clock():
    clock = ThreadCpuClock()
    file = Path(f"/proc/self/fd/{clock._file}")
    assert file.readlink().name == "schedstat"
    del clock
    assert not file.is_symlink()
