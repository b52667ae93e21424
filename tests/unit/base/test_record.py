"""A record stores the command that the user typed."""

import sys

import pytest

from samestep.base.record import command

TRAIN = ["train", "digits", "-n", "2"]


@pytest.mark.parametrize(
    "typed",
    [
        ["/venv/bin/python3", "/venv/bin/samestep", *TRAIN],
        ["python", "-X", "utf8", "-m", "samestep", *TRAIN],
    ],
)
def test_a_worker_records_the_command_of_the_user(monkeypatch, typed):
    monkeypatch.setattr(sys, "orig_argv", typed)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "train", "digits"])

    assert command() == ["samestep", *TRAIN]


def test_another_program_records_its_arguments(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "mine.py", "samestep"])
    monkeypatch.setattr(sys, "argv", ["mine.py", "samestep"])

    assert command() == ["mine.py", "samestep"]
