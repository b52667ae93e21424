"""A run folder is checked before work starts, and a run without a result did not finish."""

import json

import pytest

from samestep.base.errors import UsageError
from samestep.training.output.run_folder import Result, RunFolder

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


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_config_and_result_are_written(tmp_path):
    RunFolder.prepare(tmp_path / "a" / "run")
    folder = RunFolder(tmp_path / "a" / "run")

    folder.write_config({"lr": 0.1, "name": "x"})
    folder.steps([{"step": 1}, {"step": 2}])
    folder.steps([{"step": 3}])
    folder.evaluation({"step": 3, "accuracy": 0.5})
    folder.ranks([{"step": 3, "rank": 0}, {"step": 3, "rank": 1}])
    folder.finish(RESULT)

    assert (folder.path / "config.toml").read_text() == 'lr = 0.1\nname = "x"\n'
    assert [row["step"] for row in lines(folder.path / "metrics.jsonl")] == [1, 2, 3]
    assert [row["accuracy"] for row in lines(folder.path / "evaluations.jsonl")] == [0.5]
    assert [row["rank"] for row in lines(folder.path / "ranks.jsonl")] == [0, 1]
    result = json.loads((folder.path / "result.json").read_text())
    assert result["accuracy"] == 0.5
    assert result["step_s"]["exposed_sync"] == 0.004
    assert set(result["provenance"]) == {"schema", "created", "command", "machine"}


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "result.json").write_text("{}")

    with pytest.raises(UsageError, match=r"\(result\.json\)"):
        RunFolder.prepare(tmp_path)


def test_a_folder_that_cannot_be_created_is_refused_with_its_flag(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot write to the output folder .*--out"):
        RunFolder.prepare(tmp_path / "file" / "run")


def test_the_summary_has_the_accuracy_and_the_shares_of_the_step_time():
    assert RESULT.summary().splitlines() == [
        "2 workers: 50.00% of the test set right (1/2) after 1 epoch, 4 steps, 2.0 s; 10 samples/s",
        "a step takes 10.00 ms: exposed communication 40%, backward 30%, forward 20%, data 10%",
    ]


def test_a_diverged_run_writes_null_not_nan(tmp_path):
    RunFolder(tmp_path).steps([{"loss": float("nan"), "lr": float("inf"), "deep": [{"x": float("-inf")}]}])

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row == {"loss": None, "lr": None, "deep": [{"x": None}]}


def test_a_resumed_run_removes_rows_after_its_checkpoint_and_partial_rows(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"step": 0, "world_size": 1})
    folder.steps([{"step": step} for step in range(1, 8)])
    folder.ranks([{"step": 4, "rank": 0}, {"step": 4, "rank": 1}, {"step": 7, "rank": 0}])
    folder.evaluation({"step": 7})
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 8, "lo')

    folder.begin({"step": 5, "world_size": 3})
    folder.steps([{"step": 6}])

    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in lines(tmp_path / "ranks.jsonl")] == [4, 4]
    assert lines(tmp_path / "evaluations.jsonl") == []
    sessions = lines(tmp_path / "sessions.jsonl")
    assert [(row["step"], row["world_size"]) for row in sessions] == [(0, 1), (5, 3)]
    assert set(sessions[0]["provenance"]) == {"schema", "created", "command", "machine"}


@pytest.mark.parametrize(
    "row", ["[" * 100_000, '{"step": 2, "a": ' + "[" * 70 + "]" * 70 + "}", '"step"', '{"step": 2.5}']
)
def test_a_resumed_run_keeps_the_rows_before_an_invalid_one(tmp_path, row):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + row + '\n{"step": 3}\n')

    RunFolder(tmp_path).begin({"step": 5, "world_size": 1})

    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ([], r".*config\.toml"),
        (["config.toml", "result.json"], r".*result\.json"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_refused_with_the_file(tmp_path, holds, message):
    for name in holds:
        (tmp_path / name).write_text("")

    with pytest.raises(UsageError, match=f"--resume {tmp_path}{message}"):
        RunFolder.reopen(tmp_path)
