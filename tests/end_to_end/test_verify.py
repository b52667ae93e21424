"""`samestep verify` as a user calls it: its output, its exit code and its cleanup."""

import json
import re
from pathlib import Path

import torch

from support import commands
from support.forked_commands import samestep

GALLERY = Path(__file__).parents[1] / "gallery_ddp"


def test_a_faulty_script_is_exit_code_1_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = commands.samestep("verify", GALLERY / "sum_not_mean.py", "--steps=4", "-n", "1,2", "--json")
    assert ended.code == 1, ended.err
    report = json.loads(ended.out)
    (finding,) = report["findings"]
    assert (report["verdict"], report["same"], report["workers"]) == ("different", False, [2])
    assert (finding["code"], finding["workers"], finding["step"]) == ("sum-not-mean", 2, 0)
    assert finding["max_relative_deviation"] > 0.5
    assert "2 times" in finding["message"]


def test_a_correct_script_is_exit_code_0_and_its_files_are_unchanged(tmp_path, monkeypatch):
    # The script resumes from this file, and rewrites it after every second epoch.
    model = torch.nn.Linear(10, 1)
    torch.save({"MODEL_STATE": model.state_dict(), "EPOCHS_RUN": 1}, tmp_path / "snapshot.pt")
    before = (tmp_path / "snapshot.pt").read_bytes()
    monkeypatch.chdir(tmp_path)
    ended = samestep("verify", GALLERY / "snapshots.py", "--steps=30", "-n", "2,3")
    assert ended.code == 0, ended.err
    assert "Loading snapshot" not in ended.out + ended.err
    assert re.match(r"same: .*\b16 steps", ended.out.splitlines()[-1])
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.pt"]
    assert (tmp_path / "snapshot.pt").read_bytes() == before


def test_a_script_that_cannot_be_compared_is_exit_code_3(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = samestep("verify", GALLERY / "zero_loss.py", "--steps=4", "--json")
    assert (ended.code, json.loads(ended.out)["verdict"]) == (3, "inconclusive"), ended.err


def test_a_run_that_fails_on_one_worker_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('log.txt', 'w').write('1')\nraise SystemExit('no data')\n")
    ended = samestep("verify", "train.py")
    assert ended.code == 2
    assert "train.py" in ended.err
    assert "SystemExit: no data" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_without_a_number_of_steps_the_runs_last_into_a_second_epoch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = samestep("verify", GALLERY / "ddp_tutorial_serial.py", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert report["not_compared"] == []
    assert report["steps"] >= 20
