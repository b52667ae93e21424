"""``samestep verify`` is a single process, and commands in a shell with an allocation are rerun in it."""

import io
import re
import shutil
import sys

import pytest

from samestep.base import env
from samestep.cli.main import run_command
from samestep.cli.verify import _print
from samestep.launch.local.child import Report
from samestep.launch.local.hosting import Ending
from samestep.run import rerun
from samestep.verify.verdict import Finding, Row
from samestep.verify.verdict import Report as Comparison
from support.recordings import recording

SHELL = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "3"}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("slurm_step_2x2_rank3", "slurm .*4 .*srun --nodes=1"),
        ("openmpi_one_host_rank3", "openmpi .*4 .*-np 1"),
        ("torchrun_one_host_rank1", "torchrun .*2 .*without torchrun"),
    ],
)
def test_several_tasks_are_refused(name, named, monkeypatch, capsys):
    monkeypatch.setattr(env, "snapshot", lambda: dict(recording(name).environment))

    assert run_command(["verify", "train.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(named, line)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (["verify", "train.py"], {"--nodes=1", "--ntasks=1", "--cpus-per-task=6"}),
        (["doctor", "-n", "4"], {"--kill-on-bad-exit=1", "--cpus-per-task=3"}),
    ],
    ids=["verify", "doctor"],
)
def test_in_a_shell_with_an_allocation_a_command_is_rerun_there(command, flags, monkeypatch, capsys):
    started = []

    def become(program):
        started.extend([program.target, *program.args])
        return Report(ending=Ending(exit_code=3))

    monkeypatch.setattr(rerun, "become", become)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(env, "snapshot", lambda: dict(SHELL))

    with pytest.raises(SystemExit, match="3"):
        run_command(command)
    assert started[0] == "srun"
    assert flags < set(started)
    assert "Slurm allocation 12 " in capsys.readouterr().err


def report_with(finding, **missing):
    deviations = dict.fromkeys(("loss", "gradient", "parameters"), 0.5)
    row = Row(workers=2, steps=1, deviations=deviations, is_rounding=False, findings=[finding])
    return Comparison(rows=[row], findings=[], steps=1, not_compared=missing)


def test_a_message_is_printed_as_it_is(capsys):
    message = "rank 1 failed at train.py:100: ValueError: [bold]:1234: :smile:"
    _print(report_with(Finding(cause="crash", message=message, workers=2)))
    assert message in capsys.readouterr().out


def test_a_message_is_printed_in_any_encoding(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    _print(report_with(Finding(cause="printed", message="pr\xe9cision 0.5", workers=2)))
    assert b"pr\\xe9cision 0.5" in stdout.buffer.getvalue()


@pytest.mark.parametrize(
    ("gravity", "cause", "verdict", "color"),
    [
        ("note", "module-keys", "same", "32"),
        ("exception", "local-print", "same but for exceptions", "33"),
        ("fault", "unseeded", "inconclusive", "33"),
        ("fault", "learning-rate", "different", "1;31"),
    ],
)
def test_a_verdict_has_its_color_on_a_terminal_only(gravity, cause, verdict, color, monkeypatch, capsys):
    report = report_with(Finding(cause=cause, message="", workers=2, kind=gravity), loss="[loss]")

    _print(report)
    assert "\x1b" not in (plain := capsys.readouterr().out)
    assert plain.splitlines()[-1].startswith(f"{verdict}: ")
    assert "[loss]" in plain

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _print(report)
    assert capsys.readouterr().out.count(f"\x1b[{color}m{verdict}\x1b[0m") == 2
