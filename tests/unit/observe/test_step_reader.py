"""The log of the clock gives the same steps when it is read in any parts."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.place import Place
from samestep.observe import sample_count, step_clock
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.communication import DdpInfo, ModelInfo
from samestep.observe.instants import ClockedStep, CpuUse, HostInstants
from samestep.observe.step_clock import ScriptClock
from samestep.observe.step_reader import CpuInstant, StepReader
from support.clocked_scripts import loader, plain, train

MODEL = ModelInfo(frozenset({1}), "", ())
STEP = (
    (StepReader.load, ()),
    (StepReader.batch, (4, 7)),
    (StepReader.load_end, ()),
    (StepReader.call, (MODEL, 4, 12, (DdpInfo(lambda: None, 16),))),
    (StepReader.backward, ()),
    (StepReader.communicate, ()),
    (StepReader.communicate_end, ()),
    (StepReader.backward_end, ()),
    (StepReader.optimizer, ()),
    (StepReader.end_step, (None,)),
    (StepReader.optimizer_end, ()),
)


def entries_of(steps):
    """Return log entries of steps, one second apart."""
    entries = [(StepReader.begin, 0.0, (HostInstants(), "other"))]
    for number in range(steps):
        for what, details in STEP:
            now = float(len(entries))
            entries.append((what, now, (number,) if what == StepReader.end_step else details))
    return entries


def values(steps):
    return [
        (one.number, one.marks, one.samples, one.loaded, one.elements, one.gradient_bytes, one.overlaps)
        for one in steps
    ]


@given(st.lists(st.integers(1, 20), max_size=8))
def test_the_steps_do_not_depend_on_when_the_log_is_processed(pieces):
    whole = entries_of(4)
    log = [one for entry in whole for one in entry]
    expected = values(StepReader(log).read())
    assert (log, [number for number, *_ in expected]) == ([], [0, 1, 2, 3])
    replay, found = StepReader(log), []
    for piece in (*pieces, len(whole)):
        for entry in whole[:piece]:
            log += entry
        del whole[:piece]
        found += values(replay.read())
    assert found == expected


def test_a_sampled_step_has_cpu_readings_at_each_instant():
    log = [one for entry in entries_of(1) for one in entry]
    log += StepReader.end_step, 20.0, (1,)
    log += StepReader.begin_readings, CpuInstant(20.5, CpuUse(2.0, 0.5)), ()
    for now, what in enumerate((StepReader.call, StepReader.backward, StepReader.backward_end), start=21):
        details = (MODEL, 4, 12, ()) if what == StepReader.call else ()
        log += what, CpuInstant(float(now), CpuUse(now / 10, 0.5)), details
    log += StepReader.end_step, CpuInstant(24.0, CpuUse(2.4, 0.5)), (2,)
    *_, last = StepReader(log).read()
    assert isinstance(last, ClockedStep)
    assert last.marks == ["other", 20.0, "other", 21.0, "forward", 22.0, "backward", 23.0, "other", 24.0]
    assert last.readings is not None
    assert [one.ran for one in last.readings[1::2]] == [2.1, 2.2, 2.3]


def test_an_end_of_communication_without_its_begin_is_ignored():
    log = [StepReader.begin, 0.0, (HostInstants(), "other"), StepReader.communicate_end, 1.0, ()]
    log += StepReader.end_step, 2.0, (0,)
    (step,) = StepReader(log).read()
    assert step is not None
    assert step.marks == ["other", 0.0, "other", 2.0]


@pytest.mark.parametrize("interval", [0.0005, 600.0])
def test_the_writing_thread_loses_no_steps(tmp_path, monkeypatch, interval):
    monkeypatch.setattr(step_clock, "INTERVAL_S", interval)
    file = ClockFile(ClockOptions(folder=tmp_path), Place(), "serial")
    clock = ScriptClock(file, ClockOptions(folder=tmp_path, warm_up=2), stop=lambda: None)
    with clock.attached():
        train(*plain(), loader(samples=1200))
    clock.end("end")
    _, *lines, last = map(json.loads, file.path.read_text().splitlines())
    assert [line["step"] for line in lines] == list(range(2, 300))
    assert {(line["samples"], line["loaded"], line["elements"]) for line in lines} == {(4, 4, 12)}
    assert all(line["forward"] > 0 and line["backward"] > 0 and line["data"] > 0 for line in lines)
    ends = [line["at"] + line["seconds"] for line in lines]
    assert ends[:-1] == pytest.approx([line["at"] for line in lines[1:]], abs=1e-6)
    assert (last["made"], last["samples_per_epoch"]) == (300, 1200)


def test_batches_before_the_first_call_are_bounded_and_belong_to_the_first_step(clock, monkeypatch):
    monkeypatch.setattr(step_clock, "MAX_BATCHES", 4)
    monkeypatch.setattr(sample_count, "MAX_BATCHES", 4)

    def script(batches=2):
        *_, batch = loader(samples=4 * batches)
        train(*plain(), [batch])

    _, (line,), _ = clock(script)
    assert line["loaded"] == 8
    _, (line,), _ = clock(lambda: script(50), folder="more")
    assert line["loaded"] is None


def test_an_error_of_the_writing_thread_is_raised_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(step_clock, "INTERVAL_S", 0.001)
    monkeypatch.setattr(StepReader, "read", lambda _: 1 / 0)
    clocking = ClockOptions(folder=tmp_path)
    clock = ScriptClock(ClockFile(clocking, Place(), "serial"), clocking, stop=lambda: None)
    with clock.attached():
        train(*plain(), loader())
        assert clock._writer is not None
        while clock._writer._error is None:
            time.sleep(0.001)
    with pytest.raises(ZeroDivisionError):
        clock.end("end")


def test_unknown_bytes_of_gradients_are_those_of_one_step():
    """Only this finds that a step of unknown bytes hides those of all later ones."""
    log = [StepReader.begin, 0.0, (HostInstants(), "other")]
    for number, size in enumerate((None, 8)):
        log += StepReader.gradients, 2 * number + 1.0, (size,)
        log += StepReader.end_step, 2 * number + 2.0, (number,)
    assert [step.gradient_bytes for step in StepReader(log).read()] == [None, 8]
