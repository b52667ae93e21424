"""Each of many bad inputs ends with exit code 2 and one line, with its value and advice."""

from types import SimpleNamespace

import pytest

from samestep.base.machine import description
from samestep.cli.main import run_command

JOB = ("submit", "kubernetes", "--image", "torch", "--dry-run")
BAD = [
    # command, the value that was found, a word of the remedy
    (["trian"], "trian", "train"),
    (["run"], "PROGRAM", "--help"),
    (["run", "missing.py"], "missing.py", "--no-python"),
    (["run", "."], "folder", "-m MODULE"),
    (["run", "book.ipynb"], "notebook", "nbconvert"),
    (["run", "-"], "- ", "save it"),
    (["run", "torchrun", "train.py"], "torchrun", "without"),
    (["run", "accelerate", "launch", "train.py"], "accelerate", "without"),
    (["run", "--no-python", "/opt/venv/bin/torchrun", "train.py"], "torchrun", "without"),
    (["run", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run", "without"),
    (["run", "-n", "2", "-m", "no.such.module"], "no.such.module", "installed"),
    (["run", "-m", "--no-python", "x"], "-m", "--no-python"),
    (["run", "--log-dir", "/proc/none", "train.py"], "/proc/none", "--log-dir"),
    (["run", "--tee", "9", "train.py"], "'9'", "--tee"),
    (["run", "--nproc-per-node", "gpus", "train.py"], "gpus", "cpu"),
    (["run", "--nnodes", "1:4", "train.py"], "1:4", "--rdzv-backend c10d"),
    (["run", "--no-such-flag", "train.py"], "--no-such-flag", "--help"),
    (["run", "--redirects", "1", "x.py"], "--redirects 1", "--log-dir"),
    (["run", "--no-python", "no-such-program"], "no-such-program", "PATH"),
    (["run", "-n", "0", "train.py"], "0", "-n"),
    (["run", "-n", "-1", "train.py"], "-1", "-n"),
    (["run", "-n", "two", "train.py"], "'two'", "number of workers"),
    (["run", "-n", "2.5", "train.py"], "'2.5'", "number of workers"),
    (["run", "-n", "9" * 30, "train.py"], "999", "-n"),
    (["run", "train.py", "-n", "2"], "-n", "samestep run -n 2 train.py"),
    (["run", "--thread", "0", "train.py"], "--thread", "--threads"),
    (["run", "--threads", "0", "train.py"], "--threads 0", "from 1"),
    (["run", "--hang-timeout", "-1", "train.py"], "-1", "--hang-timeout"),
    (["run", "--max-restarts", "-1", "train.py"], "-1", "--max-restarts"),
    (["run", "--bind", "socket", "train.py"], "socket", "core"),
    (["run", "--mode", "magic", "train.py"], "magic", "autopilot"),
    (["run", "--clock-steps", "5", "train.py"], "--clock-steps", "--clock"),
    (["run", "--clock", "train.py", "train.py"], "train.py", "folder"),
    (["run", "--nnodes", "2", "train.py"], "--nnodes 2", "--master-addr"),
    (
        ["run", "--nnodes", "2", "-n", "3", "--node-rank", "0", "--master-addr", "a", "train.py"],
        "3",
        "multiple",
    ),
    (["run", "--config", "missing.toml", "train.py"], "missing.toml", "cannot read"),
    (["run", "--config", "broken.toml", "train.py"], "broken.toml", "TOML"),
    (["run", "--config", "typo.toml", "train.py"], "thread", "threads"),
    (["run", "--sanitize", "train.py"], "--sanitize", "-n 2"),
    (["train", "digit"], "digit", "digits"),
    (["train", "digits", "--epochs", "0"], "0", "--epochs"),
    (["train", "digits", "--epochs", "many"], "'many'", "integer"),
    (["train", "digits", "--lr", "nan"], "nan", "--lr"),
    (["train", "digits", "--model", "resnet17"], "resnet17", "resnet18"),
    (["train", "digits", "--resume", "missing", "--out", "x"], "--out", "--resume"),
    (["train", "mnist", "--data-dir", "missing"], "missing", "--data-dir"),
    (["train", "digits", "-n", "2", "--batch-size", "1"], "--batch-size 1", "fewer workers"),
    (["train", "digits", "--milestones", "3,5"], "3,5", "--schedule multistep"),
    (["train", "digits", "--milestones", "3;5"], "'3;5'", "30,45"),
    (["train", "digits", "--fast"], "digits", "mnist"),
    (["train", "digits", "--batch-per-worker", "8", "--batch-size", "8"], "--batch-size 8", "global batch"),
    (["train", "digits", "--eval-only"], "--eval-only", "--from"),
    (["train", "digits", "--config", "missing.toml"], "missing.toml", "configuration"),
    (["train", "digits", "--config", "broken.toml"], "broken.toml", "TOML"),
    (["train", "digits", "--clock-steps", "5"], "--clock-steps", "--clock"),
    (["train", "digits", "--metric", "Beauty"], "Beauty", "Accuracy"),
    (["train", "digits", "--out", "train.py/run"], "train.py/run", "--out"),
    (["verify", "missing.py"], "missing.py", "script"),
    (["verify", "train.py", "-n", "1,x"], "1,x", "1,2"),
    (["scale", "train.py", "-n", "1,1"], "1", "--repeats"),
    (["scale"], "target", "script"),
    (["scale", "train.py", "--worth", "2"], "2", "0.7"),
    (["report", "missing"], "missing", "folder of a training"),
    (["report", "empty.csv"], "empty.csv", "workers"),
    (["bench", "all-reduse"], "all-reduse", "all-reduce"),
    (["lab", "rung"], "rung", "ring"),
    (["submit", "slurm", "--nodes", "0", "--dry-run", "train.py"], "0", "--nodes"),
    (["submit", "slurm", "--nodes", "2", "-n", "3", "--dry-run", "train.py"], "3", "multiple"),
    ([*JOB, "--operator", "mpijob", "train.py"], "mpijob", "pytorchjob"),
    ([*JOB, "--job-name", "My_Job", "train.py"], "My_Job", "--job-name"),
    (["run", "--scratch", "empty.csv", "train.py"], "empty.csv", "--scratch"),
    (["verify", "--mode", "magic", "train.py"], "magic", "autopilot"),
    (["verify", "broken.toml"], "broken.toml", "Python"),
    (["scale", "train.py", "--pdf", "."], "--pdf .", "file"),
    (["lab", "backends", "--page", "."], "--page .", "file"),
    (["lab", "backends", "--page", "none/page.html"], "none/page.html", "folder"),
    (["lab", "ring", "-n", "65"], "65", "64"),
    (["run", ""], "PROGRAM", "empty"),
    (["run", "-m", ""], "PROGRAM", "empty"),
    (["run", "--clock", "", "train.py"], "--clock", "empty"),
    (["run", "-n", "", "train.py"], "''", "auto"),
    (["train", "digits", "--model", ""], "--model", "empty"),
    (["report", ""], "RUN", "empty"),
    (["verify", "-n", "", "train.py"], "''", "1,2,4"),
    (["verify", "-n", "1,1.5", "train.py"], "1.5", "1,2,4"),
    (["verify", "--resume-at", "3", "--end-by", "magic", "train.py"], "--end-by", "kill"),
    (["verify", "--resume-at", "3", "--resume-with", "'", "train.py"], "--resume-with", "arguments"),
    (["verify", "verify", "train.py"], "verify", "Python"),
    (["scale", "train.py", "--compare", "threads=a,b"], "--threads", "integer"),
    (["scale", "train.py", "--mode", "magic"], "magic", "autopilot"),
    (["scale", "."], ".", "-m MODULE"),
    (["data", "list", "digits"], "digits", "check"),
    (["data", "magic"], "magic", "fetch"),
    (["doctor", "extra"], "extra", "--help"),
    (["bench", "all-reduce", "--sizes", "-4", "-n", "2"], "-4", "--sizes"),
    (["help", "run", "train.py"], "train.py", "samestep help run"),
    (["--foo"], "--foo", "--help"),
    (["\u00e9"], "\u00e9", "--help"),
]
FAR_MORE = str(2 * description.MOST_PER_CORE + 1)
"""Workers that are refused on 2 cores without ``--oversubscribe``."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "book.ipynb").write_text("{}")
    (tmp_path / "broken.toml").write_text("threads = = 2\n")
    (tmp_path / "typo.toml").write_text("thread = 2\n")
    (tmp_path / "empty.csv").write_text("")


@pytest.mark.parametrize(("command", "value", "remedy"), BAD, ids=[" ".join(one[0])[:60] for one in BAD])
def test_a_bad_input_is_refused_in_one_line_with_the_value_and_advice(here, capsys, command, value, remedy):
    code = run_command(list(command))

    captured = capsys.readouterr()
    assert (code, captured.out) == (2, ""), captured
    (line,) = captured.err.splitlines()
    assert line.startswith("samestep: ")
    assert value in line
    assert remedy in line


@pytest.mark.parametrize(
    "command",
    [
        ["run", "-n", FAR_MORE, "train.py"],
        ["run", "-n", FAR_MORE, "--no-python", "true"],
        ["train", "digits", "-n", FAR_MORE],
        ["bench", "step", "-n", FAR_MORE],
        ["verify", "train.py", "-n", f"1,{FAR_MORE}"],
    ],
)
def test_far_more_workers_than_cores_need_oversubscribe(here, capsys, monkeypatch, command):
    monkeypatch.setattr(description, "cpu_share", lambda: SimpleNamespace(usable=2))

    assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--oversubscribe" in line


def test_some_more_workers_than_cores_start_with_a_warning(here, capsys, monkeypatch):
    usual = description.cpu_share()
    monkeypatch.setattr(description, "cpu_share", lambda: usual)
    number = str(description.MOST_PER_CORE * usual.usable)

    assert run_command(["run", "--dry-run", "-n", number, "train.py"]) == 0
    more = str(int(number) + 1)
    assert run_command(["run", "--dry-run", "--oversubscribe", "-n", more, "train.py"]) == 0
