"""A training stops with a checkpoint on a signal, and resumes from the newest valid checkpoint."""

import json
import os
import shlex
import shutil
import signal
import time

import numpy as np
import psutil
import pytest
from PIL import Image

from samestep.cli.main import run_command
from support import commands
from support.commands import DEADLINE_S, await_end_of, finish
from support.forked_commands import samestep, start
from support.run_files import json_lines
from support.snapshots import names
from support.systems import small_file_system
from support.tiers import long_param

TRAIN = (
    *("train", "digits", "--subset", 320, "--batch-size", 16, "--epochs", 10, "--precision", "fp64"),
    *("--lr", "0.02", "--evaluate-every", 10, "--threads", 1),
)
STEPS = 10 * 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of the uninterrupted run, by its own interpreter."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = commands.samestep(*TRAIN, "--checkpoint-steps", 40, "--keep", 5, "--out", folder)
    assert done.code == 0, done.err
    return folder


def begun(process, folder, *, steps):
    """Wait until a started training has written so many steps; return its workers' processes."""
    deadline = time.monotonic() + DEADLINE_S
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return psutil.Process(process.pid).children()


def assert_uninterrupted(folder, whole):
    ours, expected = (json_lines(path / "metrics.jsonl") for path in (folder, whole))
    assert [row["step"] for row in ours] == list(range(1, STEPS + 1))
    assert [row["lr"] for row in ours] == [row["lr"] for row in expected]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in expected], rel=0, abs=1e-10)


@pytest.mark.parametrize(
    ("number", "workers", "target", "then"),
    [
        (signal.SIGTERM, 2, "the launcher", 1),
        long_param(signal.SIGUSR2, 2, "the launcher", 3),
        (signal.SIGUSR1, 2, "one worker", 1),
        (signal.SIGTERM, 1, "the only one", 2),
    ],
    ids=["TERM to the launcher", "USR2 to the launcher", "USR1 to one worker", "TERM to the only one"],
)
def test_a_run_that_gets_a_stop_signal_exits_with_75_and_resumes_with_other_workers(
    whole, tmp_path, number, workers, target, then
):
    folder = tmp_path / "run"
    asked = ("--stop-signal", "USR2") if number == signal.SIGUSR2 else ()
    process = start(*TRAIN, "-n", workers, "--out", folder, *asked)
    children = begun(process, folder, steps=5)
    os.kill(children[-1].pid if target == "one worker" else process.pid, number)
    stopped = finish(process)

    assert stopped.code == 75, stopped.err
    assert f"stopped by {number.name} after step " in stopped.err
    assert f"samestep train --resume {folder}" in stopped.err
    assert "Traceback" not in stopped.err
    assert not (folder / "result.json").exists()
    assert len(list((folder / "checkpoints").glob("step-*"))) >= 1

    done = samestep("train", "--resume", folder, "-n", then, "--threads", 1)
    assert done.code == 0, done.err
    assert_uninterrupted(folder, whole)
    sessions = json_lines(folder / "sessions.jsonl")
    assert [row["world_size"] for row in sessions] == [workers, then]
    assert sessions[1]["checkpoint"] == f"step-{sessions[1]['step']}"


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_names_a_command_that_resumes_the_run(whole, tmp_path, workers):
    folder = tmp_path / "a run"
    process = start(*TRAIN, "-n", workers, "--checkpoint-steps", 4, "--out", folder)
    begun(process, folder, steps=10)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes
    ended = finish(process)

    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    (named,) = {line.partition("samestep train ")[2] for line in ended.err.splitlines() if "--resume" in line}
    words = shlex.split(named)
    assert words == ["--resume", str(folder)]

    done = samestep("train", *words, "--threads", 1)
    assert done.code == 0, done.err
    assert_uninterrupted(folder, whole)
    first, second = json_lines(folder / "sessions.jsonl")
    assert (first["step"], second["checkpoint"]) == (0, f"step-{second['step']}")
    assert second["step"] >= 4


@pytest.fixture
def pictures(tmp_path):
    """A folder of small images in two classes."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 3)):
        for name in ("cat", "dog"):
            place = tmp_path / "pictures" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return tmp_path / "pictures"


@pytest.mark.parametrize("number", [signal.SIGTERM, long_param(signal.SIGUSR1)], ids=["TERM", "USR1"])
@pytest.mark.parametrize("workers", [long_param(1), 2])
def test_a_stop_signal_to_the_process_group_does_not_end_loader_processes_early(
    pictures, tmp_path, workers, number
):
    folder = tmp_path / "run"
    process = start(
        *("train", "digits", "--data", "folder@8", "--data-dir", pictures, "-n", workers, "--out", folder),
        *("--batch-size", 4, "--epochs", 200, "--evaluate-every", 200, "--loader-workers", 1, "--threads", 1),
    )
    begun(process, folder, steps=5)
    loading = psutil.Process(process.pid).children(recursive=True)
    assert len(loading) >= (workers if workers == 1 else 2 * workers)
    os.killpg(process.pid, number)
    stopped = finish(process)

    assert stopped.code == 75, stopped.err
    assert f"stopped by {number.name} after step " in stopped.err
    assert "Traceback" not in stopped.err
    assert len(list((folder / "checkpoints").glob("step-*"))) >= 1
    assert await_end_of(process.pid for process in loading) == []


def truncate(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def leave_half_written(checkpoint):
    (checkpoint / "manifest.json").unlink()


def make_third_party(checkpoint):
    for path in checkpoint.iterdir():
        path.unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"of another library")


@pytest.mark.parametrize("damage", [truncate, leave_half_written, make_third_party])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_previous_one_is_used(whole, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "result.json").unlink()
    damage(folder / "checkpoints" / "step-200")

    workers = 2 if damage is truncate else 1  # rank 0 chooses, for any number of them
    done = samestep("train", "--resume", folder, "-n", workers, "--threads", 1)

    assert done.code == 0, done.err
    assert "not used: " in done.err
    assert "step-200" in done.err
    assert "resumes from step-160, step 160 of 200" in done.err
    assert_uninterrupted(folder, whole)
    if damage is make_third_party:  # left alone: the new one has another name
        assert names(folder / "checkpoints" / "step-200") == ["pytorch_model.bin"]
        assert (folder / "checkpoints" / "step-200.2").is_dir()
    else:
        assert (folder / "checkpoints" / "left-step-200").is_dir()  # nothing is lost


def test_a_run_without_a_valid_checkpoint_is_refused_with_all_reasons(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "result.json").unlink()
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        truncate(checkpoint)

    assert run_command(["train", "--resume", str(folder)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert all(f"step-{step}: " in err for step in (40, 80, 120, 160, 200))


def test_a_finished_run_is_left_unchanged(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}

    assert run_command(["train", "--resume", str(whole), "-n", "2", "--json"]) == 0
    told = capsys.readouterr()
    assert f"{whole} has finished" in told.err
    assert json.loads(told.out) == json.loads((whole / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_finished_run_is_not_resumed_for_more_epochs(whole, capsys):
    assert run_command(["train", "--resume", str(whole), "--epochs", "1000"]) == 2
    assert "keeps the run's settings" in capsys.readouterr().err


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(whole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whole / "config.toml", folder)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "lo')

    done = samestep("train", "--resume", folder, "--threads", 1)

    assert done.code == 0, done.err
    assert "has no checkpoint yet" in done.err
    assert_uninterrupted(folder, whole)


def test_a_run_that_a_full_disk_ended_resumes_without_other_losses(whole, tmp_path):
    with small_file_system(tmp_path / "disk", "1m") as grow:
        folder = tmp_path / "disk" / "run"
        ended = samestep(*TRAIN, "--checkpoint-steps", 8, "--keep", 50, "--out", folder)

        assert ended.code in (1, 2), ended.err
        assert "No space left on device" in ended.err
        assert "Traceback" not in ended.err
        assert not (folder / "result.json").exists()

        grow("64m")
        done = samestep("train", "--resume", folder, "--threads", 1)
        assert done.code == 0, done.err
        assert "resumes from step-" in done.err
        assert_uninterrupted(folder, whole)
