"""Scripts of many styles have equal clocked steps and samples alone and with a helper."""

import json
import os
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from gallery.manifest import SCRIPTS
from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import Options
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.launch.job import Program
from samestep.launch.local.hosting import host
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.step_clock import ScriptClock
from support.script_runner import restored_process_state

STYLES = ("accumulation.py", "amp_scaler.py", "checkpointed.py", "gan.py", "lbfgs.py")
"""Several batches in a step, a scaler around it, calls in backward, several optimizers, closures."""


def clocked(world, script, folder, size):
    """Run a script with `size` - 1 helpers, and return its clocked steps."""
    clocking = ClockOptions(folder=Path(folder) / "clock", warm_up=0)
    options = Options(device=script.device, short_calls="split")
    with restored_process_state(), redirect_stdout(StringIO()), own_device(options):
        os.chdir(folder)
        file = ClockFile(clocking, replace(world.place, size=size), "once")
        clock = ScriptClock(file, clocking, stop=lambda: None)
        with script_with_helpers(size, options, forks=True) as account, clock.attached():
            ending = host(Program(target=str(script.path), args=script.arguments))
        clock.end("end")
    assert not ending.exit_code, ending.traceback
    assert size == 1 or account.split.total()
    header, *steps, _ = map(json.loads, file.path.read_text().splitlines())
    return header, steps


@pytest.mark.parametrize("name", STYLES)
def test_a_script_has_equal_clocked_steps_alone_and_with_a_helper(processes, tmp_path, name):
    """Only this finds a step clock that counts the calls of a check, or calls that only the script makes."""
    script = next(one for one in SCRIPTS if one.name == name)
    found = {}
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
        ((found[size]),) = processes.run(clocked, 1, script, str(tmp_path / str(size)), size)
    (_, serial), (header, steps) = found[1], found[2]

    assert header["size"] == 2
    assert len(serial) > 1
    for kind in ("step", "loaded", "samples", "evaluated"):
        assert [step.get(kind) for step in steps] == [step.get(kind) for step in serial]
    for step in steps:
        assert step["seconds"] == pytest.approx(sum(step[phase] for phase in STEP_PHASES))
