"""The flags of the step clock."""

from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.cli.main import run_command
from samestep.cli.options.launch import Clock

HERE = Path("clock")


@pytest.mark.parametrize(
    ("folder", "steps", "warm_up", "named"),
    [
        (HERE, 0, 5, "--clock-steps .*0"),
        (HERE, 5, -1, "--clock-warm-up .*-1"),
    ],
)
def test_wrong_values_are_refused(folder, steps, warm_up, named):
    with pytest.raises(UsageError, match=named):
        Clock(clock=folder, clock_steps=steps, clock_warm_up=warm_up).checked()


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("")

    with pytest.raises(UsageError, match=r"a\.csv is a file"):
        Clock(clock=tmp_path / "a.csv").checked()


@pytest.mark.parametrize(
    "command", [("run", "-n", "2", "train.py"), ("train", "digits", "-n", "2", "--out", "run")]
)
def test_a_folder_of_another_run_is_refused_once_before_anything_starts(
    tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    Path("clock").mkdir()
    Path("clock/rank-1.jsonl").write_text("")
    verb, *rest = command

    assert run_command([verb, "--clock", "clock", *rest]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--clock clock" in line
    assert "rank-1.jsonl" in line
    assert not Path("run").exists()


def test_without_a_folder_no_step_is_recorded():
    assert Clock().checked() is None
