"""A training on real workers writes to loggers, computes metrics and writes traces."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.forked_commands import samestep
from support.run_files import json_lines

STEPS = 12  # of each of two epochs


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """Return the variables of a user without a wandb account, who sends nothing."""
    home = tmp_path_factory.mktemp("home")
    return {"HOME": str(home), "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, offline):
    """Return a run folder with all outputs, and the ended run."""
    folder = tmp_path_factory.mktemp("runs") / "all"
    what = ["digits", "--subset=300", "--batch-size=25", "--epochs=2", "--per-rank", "-n", 2]
    watched = ["--logger=tensorboard", "--logger=wandb", "--metric=AUROC", "--metric=F1Score:average=macro"]
    ended = samestep("train", *what, *watched, "--profile=3:5", "--out", folder, **offline)
    assert ended.code == 0, ended.err
    return folder, ended


def events_of(folder):
    """Return the events that TensorBoard has read."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def shown(folder):
    """Return the losses and the accuracies that TensorBoard shows, each with its step."""
    events = events_of(folder)
    return [
        [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]
        for name in ("train/loss", "test/accuracy")
    ]


def test_the_event_files_have_the_values_of_the_run_folder(run):
    folder, _ = run
    losses, accuracies = shown(folder)
    rows = {row["step"]: row["loss"] for row in json_lines(folder / "metrics.jsonl")}

    assert (losses[0][0], losses[-1][0]) == (1, 2 * STEPS)
    assert losses == [(step, rows[step]) for step, _ in losses]
    assert accuracies == [(row["step"], row["accuracy"]) for row in json_lines(folder / "evaluations.jsonl")]


def test_the_guide_lists_every_figure(run):
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "watching.md").read_text()
    listed = re.findall(r"`((?:train|phase|test)/[a-z]\w*)`", guide)
    metrics = {"test/AUROC", "test/F1Score:average=macro"}

    assert sorted(listed) == sorted(set(events_of(run[0]).Tags()["scalars"]) - metrics)


def test_metrics_are_in_evaluations_result_and_output(run):
    folder, ended = run
    last = json_lines(folder / "evaluations.jsonl")[-1]["metrics"]

    assert list(last) == ["AUROC", "F1Score:average=macro"]
    assert json.loads((folder / "result.json").read_text())["metrics"] == last
    assert f"AUROC {last['AUROC']:.4g}" in ended.err


def test_each_worker_is_traced_and_has_its_line(run):
    folder, ended = run

    for rank in range(2):
        with gzip.open(folder / "profile" / f"rank-{rank}.json.gz", "rt") as stream:
            names = {event.get("name") for event in json.load(stream)["traceEvents"]}
        assert {name for name in names if str(name).startswith("ProfilerStep#")} == {
            "ProfilerStep#3",
            "ProfilerStep#4",
        }
        assert ended.err.count(f"  rank {rank}: ") == 2
    assert "aten::" in (folder / "profile" / "summary.txt").read_text()


def test_a_resumed_run_continues_the_same_logs(run, offline, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(run[0], folder, symlinks=True)
    (folder / "result.json").unlink()  # as if it had been killed after the first epoch's checkpoint
    shutil.rmtree(folder / "checkpoints" / f"step-{2 * STEPS}")

    ended = samestep("train", "--resume", folder, "-n", 1, **offline)

    assert ended.code == 0, ended.err
    losses, accuracies = shown(folder)
    steps = [step for step, _ in losses]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 2 * STEPS)
    assert [step for step, _ in accuracies] == [STEPS, 2 * STEPS]
    kept = (folder / "wandb" / "run-id").read_text().strip()
    starts = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    assert [name.rpartition("-")[2] for name in starts] == [kept, kept]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logger", "paper"], "--logger 'paper' is not one of tensorboard, wandb."),
        (["--metric", "F3"], "--metric F3: "),
        (["--profile", "5:9000"], "--profile 5:9000: "),
    ],
)
def test_unavailable_outputs_are_refused_in_one_line_before_work(tmp_path, arguments, message):
    ended = samestep("train", "digits", "-n", 2, "--out", tmp_path / "run", *arguments)

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("samestep: error: ")
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
