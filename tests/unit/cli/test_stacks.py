"""``samestep stacks`` shows what recorded workers do, and leaves other processes to py-spy."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from samestep.base import event_record
from samestep.cli import stacks
from samestep.cli.main import run_command
from samestep.ranks.hang.rank_status import RankStatus, Wait


@pytest.fixture(autouse=True)
def record(monkeypatch, tmp_path):
    """Record this process as rank 0 of 2, which waits in a collective."""
    monkeypatch.setattr(event_record, "temporary_directory", lambda: tmp_path)
    monkeypatch.setattr(event_record, "_here", event_record._Here())
    event_record.begin_record(0, 2, "train.py")
    wait = Wait(op="all_reduce", seq=9, group="", ranks=(0, 1), age_s=4.0)
    event_record.note_status(RankStatus(generation=0, beat=1, wait=wait).to_bytes())
    event_record.note("optimizer step 8")
    yield event_record.folder()
    event_record.end_record("")


@pytest.fixture
def stranger():
    """Start a process that samestep does not know; return its id."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield str(process.pid)
        process.kill()


@pytest.mark.parametrize("run", ["pid", "folder", "none"])
def test_a_worker_is_shown_by_process_and_by_folder(run, record, capsys):
    words = {"pid": [str(os.getpid())], "folder": [str(record)], "none": []}[run]
    assert run_command(["stacks", *words]) == 0

    shown = capsys.readouterr().out
    assert "train.py" in shown or "rank 0 of 2" in shown
    if words:
        assert "waits in all_reduce #9 for 4 s" in shown
        assert "optimizer step 8" in shown
        assert "in test_a_worker_is_shown_by_process_and_by_folder" in shown


def test_runs_that_are_running_stand_at_the_end_of_the_list(monkeypatch, capsys):
    (alive,) = event_record.read_records(event_record.folder())
    ended = replace(alive, life="dead", worker=replace(alive.worker, launcher=10**8, script="ended.py"))
    monkeypatch.setattr(stacks, "read_records", lambda _: [alive, ended])

    assert run_command(["stacks"]) == 0
    _, *runs, _ = capsys.readouterr().out.splitlines()
    assert [run.split()[-1] for run in runs] == ["ended.py", "train.py"]


def test_json_has_each_worker(capsys):
    assert run_command(["stacks", str(os.getpid()), "--json"]) == 0
    (worker,) = json.loads(capsys.readouterr().out)["workers"]
    assert worker["status"]["wait"]["seq"] == 9
    assert worker["events"][-1]["text"] == "optimizer step 8"


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 2)])
def test_another_process_is_shown_by_py_spy(monkeypatch, tmp_path, stranger, code, expected):
    spy = tmp_path / "py-spy"
    spy.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\nexit {code}\n')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert run_command(["stacks", stranger]) == expected
    assert (tmp_path / "given").read_text() == f"dump --pid {stranger}\n"


@pytest.mark.parametrize(
    ("run", "reason"),
    [("999999999", "no process"), ("nowhere", "neither"), (".", "no records")],
)
def test_a_run_that_is_not_recorded_is_refused(monkeypatch, tmp_path, run, reason, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command(["stacks", run]) == 2
    assert reason in capsys.readouterr().err


def test_a_process_without_a_record_needs_py_spy(monkeypatch, tmp_path, stranger, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command(["stacks", stranger]) == 2
    assert "pip install py-spy" in capsys.readouterr().err


@pytest.mark.parametrize("events", [0, 1])
def test_as_many_events_are_shown_as_asked_for(events, capsys):
    assert run_command(["stacks", str(os.getpid()), "--events", str(events)]) == 0
    assert capsys.readouterr().out.count(" ago: ") == events
