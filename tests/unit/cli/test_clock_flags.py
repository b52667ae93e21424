"""What is to be clocked, from the flags."""

from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.cli.job_flags import clocking
from samestep.cli.main import run_command

HERE = Path("clock")


@pytest.mark.parametrize(
    ("folder", "steps", "warm_up", "words"),
    [
        (None, 5, 5, "give --clock DIR too"),
        (HERE, 0, 5, "a clocked run has at least one step"),
        (HERE, 5, -1, "--clock-warm-up -1"),
    ],
)
def test_what_cannot_be_clocked_is_refused(folder, steps, warm_up, words):
    with pytest.raises(UsageError, match=words):
        clocking(folder, steps=steps, warm_up=warm_up)


def test_a_file_is_no_folder_for_clocks(tmp_path):
    (tmp_path / "a.csv").write_text("")

    with pytest.raises(UsageError, match=r"a\.csv is a file: give a folder"):
        clocking(tmp_path / "a.csv", steps=None, warm_up=5)


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


def test_without_a_folder_nothing_is_clocked():
    assert clocking(None, steps=None, warm_up=5) is None
