"""A record stores the command that the user typed."""

import os
import subprocess
import sys

import pytest

from samestep.base.documents import read_json
from samestep.base.record import command, repository_of, write_json

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


def git(folder, *words):
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *own, *words], check=True, capture_output=True, text=True
    )


def test_a_tracked_script_has_a_commit(tmp_path, monkeypatch):
    script, beside = tmp_path / "train.py", tmp_path / "other.py"
    for path in (script, beside):
        path.write_text("import torch\n")
    git(tmp_path, "init", "-q")
    assert repository_of(script) == {"folder": str(tmp_path)}
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "x")
    commit = git(tmp_path, "rev-parse", "HEAD").stdout.strip()
    git(tmp_path, "tag", "v1")

    assert repository_of(script) == {"folder": str(tmp_path), "commit": commit}
    assert repository_of(beside) == {"folder": str(tmp_path)}
    index = tmp_path / ".git" / "index"
    kept = index.read_bytes()
    os.utime(script, (1, 1))  # git refreshes its index for such a file if it can
    (tmp_path / ".git" / "index.lock").touch()  # as while the user commits
    assert repository_of(script)["commit"] == commit
    (tmp_path / ".git" / "index.lock").unlink()
    assert repository_of(script)["commit"] == commit
    assert index.read_bytes() == kept
    script.write_text("import torch.nn\n")
    assert repository_of(script)["commit"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert repository_of(script) == {"folder": str(tmp_path)}


def test_a_record_with_a_name_that_is_not_utf_8_can_be_read(tmp_path):
    write_json(tmp_path / "record.json", {"command": ["scale", os.fsdecode(b"train-\xe9.py")]})
    assert read_json(tmp_path / "record.json") == {"command": ["scale", "train-\\udce9.py"]}
