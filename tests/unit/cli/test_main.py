"""The command line as a whole: an error is one line, an interruption is told."""

import os
import sys

import torch

from samestep.base import env
from samestep.cli.main import run_command
from samestep.recipes import cook


def test_a_verb_that_there_is_not_is_one_line_with_a_suggestion(capsys):
    assert run_command(["trian"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "'trian'" in line
    assert "Did you mean 'train'? See: samestep --help" in line


def test_an_interrupted_training_says_so(capsys, monkeypatch, tmp_path):
    def interrupted(world, order):
        raise KeyboardInterrupt

    monkeypatch.setattr(env, "snapshot", dict)
    monkeypatch.setattr(cook, "run_recipe", interrupted)
    arguments = ["train", "digits", "--threads", str(torch.get_num_threads()), "--out", str(tmp_path / "run")]

    assert run_command(arguments) == 130
    assert capsys.readouterr().err.split() == ["samestep:", "ended", "by", "signal", "2."]


def test_a_script_that_can_be_read_only_once_is_refused_as_that(capsys):
    end, other = os.pipe()
    try:
        for target in (f"/dev/fd/{end}", "-"):
            assert run_command(["run", target]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"{target} can be read only once" in line
    finally:
        os.close(end)
        os.close(other)


def test_the_command_line_leaves_pythons_report_of_an_error_as_it_is(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    run_command(["--version"])
    assert sys.excepthook is sys.__excepthook__
