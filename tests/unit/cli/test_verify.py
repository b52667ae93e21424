"""``samestep verify`` is one process; in a shell that holds an allocation it, as others, goes there."""

import shutil

import pytest

from samestep.base import env
from samestep.cli import outside
from samestep.cli.main import run_command
from samestep.launch.hosting import Ending
from samestep.launch.report import Report
from support.recordings import recording

SHELL = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "3"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slurm_step_2x2_rank3", "but slurm started 4 of it. Start one: in a job's script without srun, or"),
        ("openmpi_one_host_rank3", "but openmpi started 4 of it. Start one: without mpirun, or with -np 1"),
        ("torchrun_one_host_rank1", "but torchrun started 2 of it. Start one: without torchrun."),
    ],
)
def test_several_processes_are_refused(name, words, monkeypatch, capsys):
    monkeypatch.setattr(env, "snapshot", lambda: dict(recording(name).environment))

    assert run_command(["verify", "train.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (["verify", "train.py"], {"--nodes=1", "--ntasks=1", "--cpus-per-task=6"}),
        (["doctor", "-n", "4"], {"--kill-on-bad-exit=1", "--cpus-per-task=3"}),
    ],
    ids=["verify", "doctor"],
)
def test_in_a_shell_that_holds_an_allocation_it_starts_itself_there(command, flags, monkeypatch, capsys):
    started = []

    def become(program):
        started.extend([program.target, *program.args])
        return Report(ending=Ending(exit_code=3))

    monkeypatch.setattr(outside, "become", become)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(env, "snapshot", lambda: dict(SHELL))

    with pytest.raises(SystemExit, match="3"):
        run_command(command)
    assert started[0] == "srun"
    assert flags < set(started)
    assert "is not in it: starting there, with srun" in capsys.readouterr().err
