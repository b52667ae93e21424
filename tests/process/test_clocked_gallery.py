"""Scripts of many styles have equal clocked steps and samples on one worker and on two."""

import json
import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from samestep.autopilot.replicated_script import replicated_script

from gallery.manifest import SCRIPTS
from samestep.autopilot.script.devices import own_device
from samestep.autopilot.script.options import Options
from samestep.autopilot.split_calls import own_samples
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.launch.job import Program
from samestep.launch.local.hosting import host
from samestep.observe.clock.clock_file import ClockFile, ClockOptions
from samestep.observe.clock.step_clock import ScriptClock
from support.script_runner import restored_process_state

STYLES = ("accumulation.py", "amp_scaler.py", "checkpointed.py", "gan.py", "lbfgs.py")
"""Several batches in a step, a scaler around it, calls in backward, several optimizers, closures."""


def clocked(world, script, folder):
    """Run a script on a rank, and return its clocked steps."""
    clocking = ClockOptions(folder=Path(folder) / "clock", warm_up=0)
    options = Options(device=script.device)
    with restored_process_state(), redirect_stdout(StringIO()), own_device(options):
        os.chdir(folder)
        file = ClockFile(clocking, world.place, "replicated")
        clock = ScriptClock(file, clocking, stop=lambda: None, own=own_samples)
        with replicated_script(world, options), clock.attached():
            ending = host(Program(target=str(script.path), args=script.arguments))
        clock.end("end")
    assert not ending.exit_code, ending.traceback
    return [json.loads(line) for line in file.path.read_text().splitlines()][1:-1]


@pytest.mark.parametrize("name", STYLES)
def test_a_script_has_equal_clocked_steps_on_one_worker_and_on_two(processes, tmp_path, name):
    script = next(one for one in SCRIPTS if one.name == name)
    found = {}
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
        found[size] = processes.run(clocked, size, script, str(tmp_path / str(size)))
    (serial,), ranks = found[1], found[2]

    assert len(serial) > 1
    for rank in ranks:
        assert [step["step"] for step in rank] == [step["step"] for step in serial]
        for step in rank:
            assert step["seconds"] == pytest.approx(sum(step[phase] for phase in STEP_PHASES))
        assert [step["loaded"] for step in rank] == [step["loaded"] for step in serial]
    together = [sum(step["samples"] for step in steps) for steps in zip(*ranks, strict=True)]
    assert together == [step["samples"] for step in serial]
    assert [step.get("evaluated") for step in ranks[0]] == [step.get("evaluated") for step in serial]
