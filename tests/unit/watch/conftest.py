"""A clock for scripts that are made up, whose time goes by the changes of phase."""

import json

import pytest

from samestep.base.place import Place
from samestep.measure.clock_file import STEP_PHASES, ClockFile, ClockOptions, has_ended
from samestep.watch import replay
from samestep.watch.clocked import ScriptClock
from samestep.watch.phases import Phases


class Stopped(BaseException):
    """Ends a script here as the end of its process does elsewhere."""


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """Runs a script with a clock that is a second later at each change of phase; returns what is written."""

    def run(script, *, steps=None, warm_up=0, folder="clock", **how):
        ticks = iter(range(10_000))
        monkeypatch.setattr(replay, "Phases", lambda _, *more: Phases(lambda: float(next(ticks)), *more))
        clocking = ClockOptions(folder=tmp_path / folder, steps=steps, warm_up=warm_up)
        file = ClockFile(clocking, Place(), "serial")
        script_clock = ScriptClock(file, clocking, stop=stop, **how)
        with script_clock.attached():
            try:
                script()
            except Stopped:
                pass
            else:
                script_clock.end("end")
        assert has_ended(file.path)
        header, *lines, last = (json.loads(line) for line in file.path.read_text().splitlines())
        for line in lines:
            assert sum(line[phase] for phase in STEP_PHASES) == line["seconds"]
        return header, lines, last

    return run


def stop():
    raise Stopped
