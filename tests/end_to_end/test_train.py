"""``samestep train``, as a user types it."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from samestep.cli.main import run_command
from samestep.parallel.gradients.agreement import weights_sha256
from samestep.training.checkpoint.read import read
from support import commands
from support.commands import DEADLINE_S, finish
from support.forked_commands import samestep, start

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHORT = ("--epochs", "1", "--subset", "640", "--precision", "fp64")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same short training by one worker and by two, these from an interpreter of its own.

    Their folders and what they printed.
    """
    ended = {}
    for workers, run in (("1", samestep), ("2", commands.samestep)):
        out = tmp_path_factory.mktemp("runs") / workers
        done = run("train", "digits", "-n", workers, *SHORT, "--out", out, "--json")
        assert done.code == 0, done.err
        ended[workers] = (out, done)
    return ended


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_workers_print_the_curve_of_one(runs):
    serial, shared = (rows(runs[workers][0]) for workers in ("1", "2"))

    assert len(serial) == 10
    losses = [row["loss"] for row in serial]
    assert [row["loss"] for row in shared] == pytest.approx(losses, rel=0, abs=1e-10)
    assert [row["lr"] for row in shared] == [row["lr"] for row in serial]
    assert [row["samples"] for row in shared] == [row["samples"] for row in serial]


def test_the_result_is_printed_once_and_stored(runs):
    folder, done = runs["2"]

    printed = json.loads(done.out)
    stored = json.loads((folder / "result.json").read_text())

    assert {name: stored[name] for name in printed} == printed
    assert printed["world_size"] == 2
    assert (printed["epochs"], printed["steps"], printed["total"]) == (1, 10, 1797)
    assert printed["correct"] == json.loads(runs["1"][1].out)["correct"]
    assert printed["step_s"]["exposed_sync"] > 0
    assert done.err.count("epoch 1/1") == 1


def test_the_config_reproduces_the_run_and_the_checkpoint_holds_its_weights(runs):
    folder, done = runs["2"]
    config = tomllib.loads((folder / "config.toml").read_text())

    snapshot = read(folder / "checkpoints" / "step-10")
    again = samestep("train", "--config", str(folder / "config.toml"), "--out", str(folder.parent / "again"))

    assert (config["recipe"], config["batch_size"], config["subset"]) == ("digits", 64, 640)
    assert weights_sha256(snapshot.model) == json.loads(done.out)["weights_sha256"]
    assert again.code == 0, again.err
    assert [row["lr"] for row in rows(folder.parent / "again")] == [row["lr"] for row in rows(folder)]
    assert tomllib.loads((folder.parent / "again" / "config.toml").read_text()) == config


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_missing_compiler_is_reported_before_a_run_folder_is_created(
    workers, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("samestep.cli.train.accelerator_count", lambda: 0)

    assert run_command(["train", "digits", "--compile", "-n", workers, "--out", str(tmp_path / "run")]) == 2
    assert "CXX='no-such-compiler' is not found" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_damaged_data_set_is_one_line_and_exit_code_2(tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / name).write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"")

    done = samestep("train", "mnist", "-n", "2", "--data-dir", tmp_path)

    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "is not the published train-images-idx3-ubyte" in done.err
    assert "sha256" in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = 1", "'learning_rate' is unknown. Use one of: accumulate,"),
        ("batchsize = 1", "'batchsize' is unknown. Did you mean 'batch_size'?"),
        ("lr = 'fast'", "lr = 'fast' has the wrong type"),
        ("epochs = 1.5", "epochs = 1.5 has the wrong type"),
        ("milestones = 3", "milestones = 3 has the wrong type"),
        ("optimizer = 'lion'", "--optimizer 'lion' is not one of sgd, adamw"),
    ],
)
def test_a_wrong_configuration_is_named_by_file_and_key(text, message, tmp_path, capsys):
    path = tmp_path / "wrong.toml"
    path.write_text(text)

    assert run_command(["train", "--config", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_flags_override_the_file_and_the_file_overrides_the_recipe(tmp_path):
    from samestep.training.recipes.request import Request
    from samestep.training.recipes.resolve import resolve

    file = tmp_path / "mine.toml"
    file.write_text("lr = 0.25\nschedule = 'cosine'\n")
    settings = resolve(Request(recipe="digits", config=file, changes={"lr": 0.5}), workers=1).settings

    assert (settings.lr, settings.schedule, settings.weight_decay) == (0.5, "cosine", 5e-4)


@pytest.mark.parametrize(("code", "requeues"), [(0, 0), (75, 1), (1, 0)])
def test_the_job_script_of_the_guide_requeues_only_a_stopped_run(code, requeues):
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "training.md").read_text()
    script = textwrap.dedent(guide[guide.index("    #!/bin/bash") :].split("\n\n")[0])
    cluster = f"srun() {{ return {code}; }}; scontrol() {{ echo $*; }}; SLURM_JOB_ID=17\n"

    done = subprocess.run(["bash", "-c", cluster + script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (code, "requeue 17\n" * requeues, "")


def test_a_checkpoint_has_the_same_score_on_any_number_of_workers(runs):
    folder, done = runs["2"]
    checkpoint = str(folder / "checkpoints" / "step-10")
    trained = json.loads(done.out)

    for workers in ("1", "2"):
        flags = ("--precision", "fp64", "-n", workers, "--eval-only", "--from", checkpoint, "--json")
        score = json.loads(samestep("train", "digits", *flags).out)
        assert (score["correct"], score["total"]) == (trained["correct"], 1797)
        assert score["loss"] == pytest.approx(trained["loss"], rel=1e-12)


def test_a_batch_per_worker_is_labeled_as_another_training(tmp_path):
    done = samestep(
        *("train", "digits", "-n", "2", "--epochs", "1", "--subset", "128", "--out", str(tmp_path / "run")),
        *("--batch-per-worker", "32", "--lr-scale", "linear"),
    )
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())

    assert done.code == 0, done.err
    assert (config["batch_size"], config["lr"]) == (64, 0.2)
    assert config["label"].startswith("Not the serial training: 32 samples on each of 2 workers")
    assert config["label"] in done.err


def test_tasks_of_a_launcher_agree_on_a_folder_and_print_the_label_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
    tasks = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        what = ("digits", "--epochs", 1, "--subset", 64, "--batch-per-worker", 8)
        tasks.append(start("train", *what, "--profile", "2:3", "--threads", 1, **place, **meet))
        time.sleep(1.1)  # the name of the folder holds the second
    first, second = map(finish, tasks)

    assert (first.code, second.code) == (0, 0), first.err + second.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder.relative_to(tmp_path)) in first.out
    assert len(list((folder / "profile").glob("rank-*"))) == 2
    assert "samestep: Not the serial training: 8 samples on each of 2 workers" in first.err
    assert "Not the serial training" not in second.err


def test_the_same_command_starts_a_run_and_resumes_it_until_it_has_finished(tmp_path):
    folder = tmp_path / "long"
    what = ("digits", "--subset", 640, "--epochs", 25, "--evaluate-every", 25, "--threads", 1)
    command = ("train", *what, "-n", 2, "--resume", folder)

    first = start(*command)
    deadline = time.monotonic() + DEADLINE_S
    while not (folder / "metrics.jsonl").exists():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGUSR1)
    stopped, done, over = finish(first), finish(start(*command)), finish(start(*command))

    assert (stopped.code, done.code, over.code) == (75, 0, 0), stopped.err + done.err + over.err
    assert "resumes from step-" in done.err
    assert [row["step"] for row in rows(folder)] == list(range(1, 251))
    assert "has finished" in over.err
