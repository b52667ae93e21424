"""A step clock for tests, whose time advances by one second at each change of phase."""

import json

import pytest

from samestep.base.place import Place
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.observe import step_reader
from samestep.observe.clock_file import ClockFile, ClockOptions, has_ended
from samestep.observe.step_clock import ScriptClock
from support.clocked_scripts import ticking_phases


class Stopped(BaseException):
    """Ends a script, in the place of the end of its process."""


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """Return a function that runs a script with such a clock and returns the lines of the file."""

    def run(script, *, steps=None, warm_up=0, folder="clock", **how):
        monkeypatch.setattr(step_reader, "Phases", ticking_phases())
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
