"""Loggers get figures by name, survive a resume, and never end a training."""

import sys
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import UsageError
from samestep.training.output.loggers.logger import (
    LoggedSink,
    check_loggers,
    evaluation_figures,
    spread,
    step_figures,
    with_loggers,
)
from samestep.training.output.run_folder import RunFolder
from samestep.training.settings import RunOptions
from support.run_files import CONFIG, RESULT, evaluation_row, json_lines, step_row

LOGGERS = next(one for one in fields(RunOptions) if one.name == "logger").metadata["choices"]


class Fragile:
    """A logger that remembers, and breaks at a call of one kind."""

    def __init__(self, breaks_at=None):
        self.calls = []
        self._breaks_at = breaks_at

    def _take(self, kind, what):
        if kind == self._breaks_at:
            raise RuntimeError("the disk\nis full")
        self.calls.append((kind, what))

    def steps(self, rows):
        self._take("steps", [row["step"] for row in rows])

    def evaluation(self, row):
        self._take("evaluation", row["step"])

    def close(self, result):
        self._take("close", result)


def watched(tmp_path, **loggers):
    """Return a sink over a run folder with these loggers, and what is told."""
    told = []
    sink = LoggedSink(RunFolder(tmp_path), told.append)
    sink._loggers.update(loggers)
    return sink, told


def test_a_step_and_an_evaluation_become_figures_by_name():
    assert step_figures(step_row(3)) == {
        "train/epoch": 1,
        "train/samples": 24,
        "train/loss": 0.5,
        "train/lr": 0.1,
        "phase/forward": 0.002,
    }
    assert evaluation_figures(evaluation_row(3)) == {
        "test/seconds": 1.5,
        "test/accuracy": 0.75,
        "test/AUROC": 0.9,
    }


@given(st.integers(0, 700), st.integers(2, 20))
def test_some_of_many_rows_begin_with_the_first_end_with_the_last_and_are_evenly_spread(count, most):
    rows = [{"step": step} for step in range(count)]

    steps = [row["step"] for row in spread(rows, most)]

    assert len(steps) == min(count, most)
    assert steps[:1] == [0][:count]
    assert steps[-1:] == [count - 1][:count]
    gaps = [after - before for before, after in pairwise(steps)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_rows_are_kept_whole_and_shown_in_part(tmp_path):
    logger = Fragile()
    sink, _ = watched(tmp_path, it=logger)

    sink.steps([step_row(step) for step in range(1, 101)])
    sink.ranks([{"step": 100, "rank": 0}])
    sink.evaluation(evaluation_row(100))
    sink.finish(RESULT)

    assert len(json_lines(tmp_path / "metrics.jsonl")) == 100
    assert [len(json_lines(tmp_path / f"{name}.jsonl")) for name in ("ranks", "evaluations")] == [1, 1]
    assert (tmp_path / "result.json").exists()
    (_, steps), *rest = logger.calls
    assert (steps[0], steps[-1], len(steps)) == (1, 100, 10)
    assert rest == [("evaluation", 100), ("close", RESULT)]


@pytest.mark.parametrize("breaks_at", ["steps", "evaluation", "close"])
def test_a_logger_that_fails_is_told_once_and_left_out_and_the_others_go_on(tmp_path, breaks_at):
    broken, whole = Fragile(breaks_at), Fragile()
    sink, told = watched(tmp_path, broken=broken, whole=whole)

    for step in (1, 2):
        sink.steps([step_row(step)])
        sink.evaluation(evaluation_row(step))
    sink.finish(RESULT)

    (line,) = told
    assert "--logger broken" in line
    assert "RuntimeError: the disk is full" in line
    assert [kind for kind, _ in whole.calls] == ["steps", "evaluation"] * 2 + ["close"]
    assert len(broken.calls) < len(whole.calls)
    assert len(json_lines(tmp_path / "metrics.jsonl")) == 2


def test_a_run_that_does_not_finish_lets_go_of_its_loggers_without_a_result(tmp_path):
    logger = Fragile()
    sink, _ = watched(tmp_path, it=logger)

    sink.steps([step_row(1)])
    sink.close()
    sink.close()

    assert logger.calls == [("steps", [1]), ("close", None)]


def test_after_a_finish_there_is_nothing_left_to_close(tmp_path):
    logger = Fragile()
    sink, _ = watched(tmp_path, it=logger)

    sink.finish(RESULT)
    sink.close()

    assert logger.calls == [("close", RESULT)]


def test_a_failing_run_folder_is_an_error_as_without_loggers(tmp_path):
    sink, told = watched(tmp_path / "gone", it=Fragile())

    with pytest.raises(Exception, match="cannot write to"):
        sink.finish(RESULT)
    assert told == []


def test_without_loggers_nothing_but_the_run_folder_is_written(tmp_path):
    sink = with_loggers(RunFolder(tmp_path), (), CONFIG, report=pytest.fail)

    sink.steps([step_row(1)])

    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logger": ("tensorboard", "paper")}, "--logger 'paper' is not one of tensorboard, wandb"),
        ({"profile": "5"}, "--profile is '5'"),
    ],
)
def test_what_cannot_be_shown_or_traced_is_refused_by_its_flag(options, message):
    with pytest.raises(UsageError, match=message):
        RunOptions(**options)


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_whose_package_is_missing_is_refused_before_work(monkeypatch, name):
    check_loggers([name])
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(UsageError, match=rf"--logger {name} needs .*pip install 'samestep\[loggers\]'"):
        check_loggers([name])
