"""What a clock noted is gone through later, in pieces as they come, and gives the same steps."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.place import Place
from samestep.measure.clock_file import ClockFile, ClockOptions
from samestep.measure.instants import HostInstants
from samestep.watch import clocked, loaded, notes
from samestep.watch.clocked import ScriptClock
from samestep.watch.models import Model, Replica
from samestep.watch.phases import Clocked
from samestep.watch.replay import Did, Replay, Told
from samestep.watch.stolen import Processor
from support.clocked_scripts import loader, plain, train

MODEL = Model(frozenset({1}), "", ())
STEP = (
    (Did.LOAD, ()),
    (Did.GET, (4, 7)),
    (Did.LOADED, ()),
    (Did.CALL, (MODEL, 4, 12, (Replica(lambda: None, 16),))),
    (Did.DIFFERENTIATE, ()),
    (Did.EXCHANGE, ()),
    (Did.EXCHANGED, ()),
    (Did.DIFFERENTIATED, ()),
    (Did.UPDATE, ()),
    (Did.END_STEP, (None,)),
    (Did.UPDATED, ()),
)


def noted(steps):
    """Return what is noted of steps, a second between each two entries."""
    entries = [(Did.BEGIN, 0.0, (HostInstants(), "other"))]
    for number in range(steps):
        for what, details in STEP:
            now = float(len(entries))
            entries.append((what, now, (number,) if what == Did.END_STEP else details))
    return entries


def told(steps):
    return [
        (one.number, one.marks, one.samples, one.loaded, one.elements, one.sent, one.hides) for one in steps
    ]


@given(st.lists(st.integers(1, 20), max_size=8))
def test_it_does_not_matter_when_it_is_gone_through(pieces):
    whole = noted(4)
    log = [one for entry in whole for one in entry]
    expected = told(Replay(log).read())
    assert (log, [number for number, *_ in expected]) == ([], [0, 1, 2, 3])
    replay, found = Replay(log), []
    for piece in (*pieces, len(whole)):
        for entry in whole[:piece]:
            log += entry
        del whole[:piece]
        found += told(replay.read())
    assert found == expected


def test_of_a_step_that_is_told_of_each_moment_has_the_processor():
    log = [one for entry in noted(1) for one in entry]
    log += Did.END_STEP, 20.0, (1,)
    log += Did.TELL, Told(20.5, Processor(2.0, 0.5)), ()
    for now, what in enumerate((Did.CALL, Did.DIFFERENTIATE, Did.DIFFERENTIATED), start=21):
        details = (MODEL, 4, 12, ()) if what == Did.CALL else ()
        log += what, Told(float(now), Processor(now / 10, 0.5)), details
    log += Did.END_STEP, Told(24.0, Processor(2.4, 0.5)), (2,)
    *_, last = Replay(log).read()
    assert isinstance(last, Clocked)
    assert last.marks == ["other", 20.0, "other", 21.0, "forward", 22.0, "backward", 23.0, "other", 24.0]
    assert last.readings is not None
    assert [one.ran for one in last.readings[1::2]] == [2.1, 2.2, 2.3]


def test_what_ends_and_began_before_anything_was_noted_is_nothing():
    log = [Did.BEGIN, 0.0, (HostInstants(), "other"), Did.EXCHANGED, 1.0, ()]
    log += Did.END_STEP, 2.0, (0,)
    (step,) = Replay(log).read()
    assert step is not None
    assert step.marks == ["other", 0.0, "other", 2.0]


@pytest.mark.parametrize("interval", [0.0005, 600.0])
def test_the_thread_that_goes_through_it_takes_nothing_away_from_the_script(tmp_path, monkeypatch, interval):
    monkeypatch.setattr(notes, "INTERVAL_S", interval)
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


def test_what_is_loaded_before_any_model_is_called_takes_no_room_and_is_of_the_first_step(clock, monkeypatch):
    monkeypatch.setattr(clocked, "MOST_BATCHES", 4)
    monkeypatch.setattr(loaded, "MOST_BATCHES", 4)

    def script(batches=2):
        *_, batch = loader(samples=4 * batches)
        train(*plain(), [batch])

    _, (line,), _ = clock(script)
    assert line["loaded"] == 8
    _, (line,), _ = clock(lambda: script(50), folder="more")
    assert line["loaded"] is None


def test_an_error_of_the_thread_that_goes_through_it_is_told_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "INTERVAL_S", 0.001)
    monkeypatch.setattr(Replay, "read", lambda _: 1 / 0)
    clocking = ClockOptions(folder=tmp_path)
    clock = ScriptClock(ClockFile(clocking, Place(), "serial"), clocking, stop=lambda: None)
    with clock.attached():
        train(*plain(), loader())
        assert clock._notes is not None
        while clock._notes._error is None:
            time.sleep(0.001)
    with pytest.raises(ZeroDivisionError):
        clock.end("end")
