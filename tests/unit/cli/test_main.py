"""The command line as a whole: an error is one line, and an interruption is logged."""

import os
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from samestep import __main__
from samestep.base import env
from samestep.base.errors import INTERRUPTED, UsageError
from samestep.cli.main import run_command
from samestep.cli.options import launch
from samestep.training.recipes import run_recipe


def test_an_unknown_verb_is_one_line_with_a_suggestion(capsys):
    assert run_command(["trian"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "'trian'" in line
    assert "'train'" in line
    assert "samestep --help" in line


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["train.py"], ["samestep run train.py"]),
        (["-n", "2", "train.py"], ["samestep run train.py"]),
        (["train", "train.py"], ["samestep run train.py", "digits"]),
        (["runn", "-n", "2", "train.py"], ["'run'"]),
        (["launch", "-n", "2", "train.py"], ["'launch'", "samestep run train.py"]),
        (["submit", "train.py"], ["'train.py'", "slurm, kubernetes"]),
        (["submit", "-n", "2", "train.py"], ["-n", "slurm, kubernetes"]),
        (["lab", "nosuch"], ["'nosuch'", "hello", "samestep lab --help"]),
        (["lab", "start"], ["NAME", "samestep lab start --help"]),
        (["submit", "slurm"], ["PROGRAM", "samestep submit slurm --help"]),
        (["elsewhere/train.py"], ["samestep run elsewhere/train.py"]),
        (["version"], ["samestep --version"]),
    ],
)
def test_words_without_their_command_are_answered_with_the_command(
    capsys, monkeypatch, tmp_path, words, names
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    assert run_command(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert [name for name in names if name not in line] == []


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "submit", "slurm"], ["submit", "slurm", "--help"]),
        (["-V"], ["--version"]),
    ],
)
def test_help_and_version_have_two_names(capsys, words, same):
    assert run_command(words) == run_command(same) == 0
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


def test_the_help_of_an_interpreter_without_docstrings_is_the_same():
    for words in (["--help"], ["run", "--help"], ["lab", "--help"]):
        own, without = (
            subprocess.run(
                [sys.executable, *flags, "-m", "samestep", *words], capture_output=True, check=True
            )
            for flags in ([], ["-OO"])
        )
        assert own.stdout == without.stdout


def test_an_interrupted_training_logs_the_signal(capsys, monkeypatch, tmp_path):
    def interrupted(world, order):
        raise KeyboardInterrupt

    monkeypatch.setattr(env, "snapshot", dict)
    monkeypatch.setattr(run_recipe, "run_recipe", interrupted)
    arguments = ["train", "digits", "--threads", str(torch.get_num_threads()), "--out", str(tmp_path / "run")]

    assert run_command(arguments) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert "signal 2" in line


def test_a_script_that_can_be_read_only_once_is_refused(capsys):
    end, other = os.pipe()
    try:
        for target in (f"/dev/fd/{end}", "-"):
            assert run_command(["run", target]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"{target} " in line
    finally:
        os.close(end)
        os.close(other)


def test_a_module_that_this_package_hides_is_named(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    launch.program(str(script), module=False)
    assert capsys.readouterr().err == ""

    (tmp_path / "samestep.py").touch()
    launch.program(str(script), module=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "samestep.py") in line

    launch.program(str(tmp_path / "samestep.py"), module=False)
    assert capsys.readouterr().err == ""


def test_the_command_line_does_not_replace_the_excepthook(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    run_command(["--version"])
    assert sys.excepthook is sys.__excepthook__


def test_ctrl_c_during_the_imports_ends_with_its_code(monkeypatch):
    class Interrupted(MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname == "samestep.cli.main":
                raise KeyboardInterrupt
            return

    monkeypatch.delitem(sys.modules, "samestep.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])

    with pytest.raises(SystemExit) as ended:
        __main__.main()

    assert ended.value.code == INTERRUPTED


def test_a_module_of_the_current_folder_hides_none_of_the_library(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/current", "/library"])
    __main__.leave_current_folder()
    assert sys.path == [str(Path(sys.executable).parent), "/library"]

    monkeypatch.setattr(sys, "path", ["/library"])
    monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=True))
    __main__.leave_current_folder()
    assert sys.path == ["/library"]


def test_a_current_folder_that_is_gone_is_one_line(capsys, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert run_command(["report", "runs/x"]) == UsageError.exit_code
    assert len(capsys.readouterr().err.splitlines()) == 1
