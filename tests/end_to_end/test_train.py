"""``samestep train``, as a user types it."""

import json
import subprocess
import sys

import pytest

from samestep.checkpoint.digest import weights_sha256
from samestep.checkpoint.save import load
from samestep.cli.main import run_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHORT = ("--epochs", "1", "--subset", "640", "--dtype", "float64")


def samestep(*arguments, env=None, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "samestep", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=env,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same short training by one worker and by two: their folders and what they printed."""
    found = {}
    for workers in ("1", "2"):
        out = tmp_path_factory.mktemp("runs") / workers
        done = samestep("train", "digits", "-n", workers, *SHORT, "--out", str(out), "--json")
        assert done.returncode == 0, done.stderr
        found[workers] = (out, done)
    return found


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_workers_print_the_curve_of_one(runs):
    one, two = (rows(runs[workers][0]) for workers in ("1", "2"))

    assert len(one) == 10
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=0, abs=1e-10)
    assert [row["lr"] for row in two] == [row["lr"] for row in one]
    assert [row["samples"] for row in two] == [row["samples"] for row in one]


def test_the_result_is_printed_once_and_stored(runs):
    folder, done = runs["2"]

    printed = json.loads(done.stdout)
    stored = json.loads((folder / "result.json").read_text())

    assert {name: stored[name] for name in printed} == printed
    assert printed["world_size"] == 2
    assert (printed["epochs"], printed["steps"], printed["total"]) == (1, 10, 1797)
    assert printed["correct"] == json.loads(runs["1"][1].stdout)["correct"]
    assert printed["step_s"]["exposed_sync"] > 0
    assert done.stderr.count("epoch 1/1") == 1


def test_the_config_reproduces_the_run_and_the_checkpoint_holds_its_weights(runs):
    folder, done = runs["2"]
    config = tomllib.loads((folder / "config.toml").read_text())

    weights, state = load(folder / "checkpoints" / "step-10")

    assert (config["recipe"], config["batch_size"], config["train_samples"]) == ("digits", 64, 640)
    assert weights_sha256(weights) == json.loads(done.stdout)["weights_sha256"] == state["weights_sha256"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no recipe is called 'nonsense'. Use one of: digits, mnist."),
        (["digits", "-n", "2", "--batch-size", "1"], "--batch-size 1 is the global batch, and 2 workers"),
        (["digits", "--subset", "4000"], "holds 3823"),
        (["digits", "--lr", "fast"], "'--lr'"),
        (["digits", "-n", "0"], "-n 0"),
        (["mnist", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        (["mnist", "--data-dir", "."], "train-images-idx3-ubyte"),
        (["digits", "--out", "file/run"], "cannot write to the output folder file/run"),
        (["digits", "--sync", "magic"], "--sync 'magic'"),
        (["digits", "--optimizer", "adamw", "--momentum", "0.5"], "--momentum is SGD's"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.chdir(tmp_path)

    code = run_command(["train", *arguments])  # nothing starts, so there is no need for a process

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1, err


def test_a_damaged_data_set_is_one_line_and_exit_code_2(tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / name).write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"")

    done = samestep("train", "mnist", "-n", "2", "--data-dir", str(tmp_path))

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "is not the published train-images-idx3-ubyte" in done.stderr
    assert "sha256" in done.stderr


def test_a_run_folder_is_never_written_over(runs, capsys):
    folder, _ = runs["1"]

    assert run_command(["train", "digits", "--out", str(folder)]) == 2
    assert "already holds a run" in capsys.readouterr().err
