"""The files of a clocked run are read whole, or refused where they are damaged."""

import json
import math

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.measured import measured
from samestep.scaling.rank_files import Run, read_ranks
from support.clocked_runs import clocked, write


def test_what_was_written_is_read(tmp_path):
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
    ("lines", "said"),
    [
        (["{", "{}"], r"rank-0\.jsonl is damaged: line 1 is no JSON"),
        (["[]"], r"rank-0\.jsonl is damaged: line 1 lacks rank, size, kind, host"),
        (
            ['{"rank": 0, "size": 1, "kind": "serial", "host": "a"}', '{"step": 1}'],
            "line 2 lacks at, seconds, samples",
        ),
        (
            ['{"rank": 0, "size": 1, "kind": "serial", "host": "a"}', '{"ended": "end"}', '{"ended": "end"}'],
            "line 3 comes after the end",
        ),
        ([], r"rank-0\.jsonl is empty"),
        (
            ['{"rank": 0, "size": 3, "kind": "serial", "host": "a"}'],
            "is of 3 workers, and holds the files of ranks 0",
        ),
    ],
)
def test_damage_is_named(tmp_path, lines, said):
    (tmp_path / "rank-0.jsonl").write_text("".join(line + "\n" for line in lines))

    with pytest.raises(UsageError, match=said):
        read_ranks(tmp_path)


@pytest.mark.parametrize(
    ("line", "name", "value", "said"),
    [
        (1, "rank", "x", "a whole number from 0 on"),
        (1, "rank", True, "a whole number from 0 on"),
        (1, "size", None, "a whole number from 1 on"),
        (1, "host", ["a"], "text"),
        (1, "torch", ["a"], "text or null"),
        (1, "threads", "x", "a whole number from 1 on or null"),
        (1, "nodes", 0, "a whole number from 1 on or null"),
        (1, "cpus", "a-b", "a list of processors"),
        (1, "cpus", "0-99999999999", "a list of processors"),
        (1, "argv", 3, "a list of text"),
        (1, "config", [], "an object or null"),
        (2, "step", [1], "a whole number from 0 on"),
        (2, "seconds", None, "a number"),
        pytest.param(2, "seconds", 10**400, "a number", id="seconds without end"),
        (2, "at", True, "a number"),
        (2, "forward", "x", "a number"),
        (2, "forward", math.nan, "a number"),
        (2, "samples", -1, "a number from 0 on"),
        (2, "loaded", "x", "a number from 0 on or null"),
        (2, "elements", None, "a number from 0 on"),
        (2, "exchange_bytes", 0.5, "a whole number from 0 on or null"),
        (2, "evaluated", "no", "true or false"),
        (5, "ended", 0, "text"),
        (5, "made", "x", "a whole number from 0 on"),
        (5, "peak_memory_bytes", "x", "a whole number from 0 on or null"),
        (5, "samples_per_epoch", "x", "a number from 0 on or null"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path, line, name, value, said):
    write(tmp_path, clocked(1, steps=3))
    file = tmp_path / "rank-0.jsonl"
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    rows[line - 1][name] = value
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    with pytest.raises(UsageError) as caught:
        read_ranks(tmp_path)

    assert str(caught.value) == f"{file} is damaged: line {line} has {name}, which is not {said}."


def test_what_goes_too_deep_is_no_json(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text("[" * 100_000 + "\n")

    with pytest.raises(UsageError, match="line 1 is no JSON"):
        read_ranks(tmp_path)


def test_steps_that_took_no_time_are_refused(tmp_path):
    run = clocked(1, steps=3)
    for step in run.ranks[0].steps:
        step["seconds"] = 0
    write(tmp_path, run)

    with pytest.raises(UsageError, match="no step of the run on 1 worker counts: they took no time"):
        measured([Run(ranks=read_ranks(tmp_path))])


def test_a_phase_that_ended_before_it_began_on_its_device_takes_no_time(tmp_path):
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
