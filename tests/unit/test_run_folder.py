"""A run folder is checked before work starts, and a run without a result did not finish."""

import json

import pytest
from torch import nn

from samestep.base.errors import Error, UsageError
from samestep.checkpoint.save import load
from samestep.sharding.position import Position
from samestep.training.result import Result
from samestep.training.run_folder import RunFolder

RESULT = Result(
    accuracy=0.5,
    correct=1,
    total=2,
    loss=0.7,
    epochs=1,
    steps=4,
    seconds=2.0,
    samples_per_second=10.0,
    weights_sha256="ab",
    world_size=2,
    step_s={"data": 0.001, "forward": 0.002, "backward": 0.003, "exposed_sync": 0.004, "optimizer": 0.0},
)


def test_rows_config_checkpoint_and_result_are_written(tmp_path):
    RunFolder.prepare(tmp_path / "a" / "run")
    folder = RunFolder(tmp_path / "a" / "run")

    folder.write_config({"lr": 0.1, "name": "x"})
    folder.steps([{"step": 1}, {"step": 2}])
    folder.steps([{"step": 3}])
    folder.finish(nn.Linear(1, 1), RESULT, Position(seed=7, epoch=1))

    assert (folder.path / "config.toml").read_text() == 'lr = 0.1\nname = "x"\n'
    rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    _, state = load(folder.path / "checkpoints" / "step-4")
    assert state == {"format": 1, "step": 4, "seed": 7, "epoch": 1, "samples": 0, "weights_sha256": "ab"}
    result = json.loads((folder.path / "result.json").read_text())
    assert result["accuracy"] == 0.5
    assert result["step_s"]["exposed_sync"] == 0.004
    assert set(result["provenance"]) == {"schema", "created", "command", "machine"}


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    (tmp_path / "result.json").write_text("{}")

    with pytest.raises(UsageError, match=r"already holds a run \(result.json\)"):
        RunFolder.prepare(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot write to the output folder .*--out"):
        RunFolder.prepare(tmp_path / "file" / "run")


def test_the_summary_says_what_was_reached_and_where_the_time_went():
    assert RESULT.summary().splitlines() == [
        "2 workers: 50.00% of the test set right (1/2) after 1 epoch, 4 steps, 2.0 s; 10 samples/s",
        "a step takes 10.00 ms: exposed sync 40%, backward 30%, forward 20%, data 10%",
    ]


def test_a_diverged_run_writes_null_not_nan(tmp_path):
    RunFolder(tmp_path).steps([{"loss": float("nan"), "lr": float("inf"), "deep": [{"x": float("-inf")}]}])

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row == {"loss": None, "lr": None, "deep": [{"x": None}]}


def test_metrics_that_cannot_be_written_end_the_run_with_the_path(tmp_path):
    with pytest.raises(Error, match=r"cannot write to .*gone/metrics.jsonl: No such file"):
        RunFolder(tmp_path / "gone").steps([{"step": 1}])
