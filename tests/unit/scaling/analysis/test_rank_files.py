"""The files of a clocked run are read, or refused with the place of the damage."""

import json
import math

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.points import measured
from samestep.scaling.analysis.runs import Run, read_ranks
from support.clocked_runs import clocked, write


def test_written_files_are_read_back(tmp_path):
    run = clocked(11, steps=3)
    write(tmp_path, run)

    assert read_ranks(tmp_path) == run.ranks  # by rank, not by name


def test_a_worker_that_was_killed_has_no_end_and_half_a_line(tmp_path):
    run = clocked(1, steps=3)
    write(tmp_path, run)
    file = tmp_path / "rank-0.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]) + '\n{"step": 9, "a')

    (rank,) = read_ranks(tmp_path)

    assert rank.steps == run.ranks[0].steps
    assert rank.end == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{", "{}"], r"rank-0\.jsonl is damaged: line 1 is not JSON"),
        (["[]"], r"rank-0\.jsonl is damaged: line 1 lacks rank, size, kind, host"),
        (
            ['{"rank": 0, "size": 1, "kind": "serial", "host": "a"}', '{"step": 1}'],
            "line 2 lacks at, seconds, samples",
        ),
        (
            ['{"rank": 0, "size": 1, "kind": "serial", "host": "a"}', '{"ended": "end"}', '{"ended": "end"}'],
            "line 3 is after the end",
        ),
        ([], r"rank-0\.jsonl is empty"),
        (
            ['{"rank": 0, "size": 3, "kind": "serial", "host": "a"}'],
            "ranks 0, of a run of 3 workers",
        ),
        pytest.param(
            [f'{{"rank": 0, "size": {10**30}, "kind": "serial", "host": "a"}}'],
            "ranks 0, of a run of 10+ workers",
            id="size beyond memory",
        ),
    ],
)
def test_damage_is_named(tmp_path, lines, message):
    (tmp_path / "rank-0.jsonl").write_text("".join(line + "\n" for line in lines))

    with pytest.raises(UsageError, match=message):
        read_ranks(tmp_path)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (1, "rank", "x"),
        (1, "rank", True),
        (1, "size", None),
        (1, "host", ["a"]),
        (1, "torch", ["a"]),
        (1, "threads", "x"),
        (1, "nodes", 0),
        (1, "cpus", "a-b"),
        (1, "cpus", "0-99999999999"),
        (1, "argv", 3),
        (1, "config", []),
        (2, "step", [1]),
        (2, "seconds", None),
        pytest.param(2, "seconds", 10**400, id="infinite seconds"),
        (2, "at", True),
        (2, "forward", "x"),
        (2, "forward", math.nan),
        (2, "samples", -1),
        (2, "loaded", "x"),
        (2, "elements", None),
        (2, "exchange_bytes", 0.5),
        (2, "evaluated", "no"),
        (5, "ended", 0),
        (5, "made", "x"),
        (5, "peak_memory_bytes", "x"),
        (5, "samples_per_epoch", "x"),
    ],
)
def test_an_invalid_value_is_named(tmp_path, line, name, value):
    write(tmp_path, clocked(1, steps=3))
    file = tmp_path / "rank-0.jsonl"
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    rows[line - 1][name] = value
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    with pytest.raises(UsageError) as caught:
        read_ranks(tmp_path)

    assert f"{file} is damaged: line {line} has {name}, " in str(caught.value)


def test_nesting_that_is_too_deep_is_not_json(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text("[" * 100_000 + "\n")

    with pytest.raises(UsageError, match="line 1 is not JSON"):
        read_ranks(tmp_path)


def test_steps_without_time_are_refused(tmp_path):
    run = clocked(1, steps=3)
    for step in run.ranks[0].steps:
        step["seconds"] = 0
    write(tmp_path, run)

    with pytest.raises(UsageError, match=r"run on 1 worker .* is 0"):
        measured([Run(ranks=read_ranks(tmp_path))])


def test_a_negative_time_of_a_device_counts_as_zero(tmp_path):
    run = clocked(1, steps=3)
    for step in run.ranks[0].steps:
        step["to_device"] = -1e-6
    write(tmp_path, run)

    (point,) = measured([Run(ranks=read_ranks(tmp_path))])

    assert point.step_s["to_device"] == 0


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "rank-0.jsonl").mkdir()

    with pytest.raises(UsageError, match=r"cannot read .*rank-0\.jsonl: Is a directory"):
        read_ranks(tmp_path)


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no step was measured there"):
        read_ranks(tmp_path)
