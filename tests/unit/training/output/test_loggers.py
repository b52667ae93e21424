"""Loggers receive named figures, and a failing logger does not end a training."""

import sys
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import UsageError
from samestep.training.output.loggers import (
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


class FailingLogger:
    """A logger that records its calls, and fails at calls of one kind."""

    def __init__(self, fails_at=None):
        self.calls = []
        self._fails_at = fails_at

    def _record(self, kind, value):
        if kind == self._fails_at:
            raise RuntimeError("the disk\nis full")
        self.calls.append((kind, value))

    def steps(self, rows):
        self._record("steps", [row["step"] for row in rows])

    def evaluation(self, row):
        self._record("evaluation", row["step"])

    def close(self, result):
        self._record("close", result)


def sink_with(tmp_path, **loggers):
    """Return a sink for a run folder with these loggers, and the list of its messages."""
    messages = []
    sink = LoggedSink(RunFolder(tmp_path), messages.append)
    sink._loggers.update(loggers)
    return sink, messages


def test_steps_and_evaluations_become_named_figures():
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
def test_a_selection_of_rows_has_the_first_and_the_last_and_is_evenly_spaced(count, most):
    rows = [{"step": step} for step in range(count)]

    steps = [row["step"] for row in spread(rows, most)]

    assert len(steps) == min(count, most)
    assert steps[:1] == [0][:count]
    assert steps[-1:] == [count - 1][:count]
    gaps = [after - before for before, after in pairwise(steps)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_all_rows_are_stored_and_a_selection_is_logged(tmp_path):
    logger = FailingLogger()
    sink, _ = sink_with(tmp_path, it=logger)

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


@pytest.mark.parametrize("fails_at", ["steps", "evaluation", "close"])
def test_a_failing_logger_is_reported_once_and_disabled_and_the_others_continue(tmp_path, fails_at):
    broken, whole = FailingLogger(fails_at), FailingLogger()
    sink, messages = sink_with(tmp_path, broken=broken, whole=whole)

    for step in (1, 2):
        sink.steps([step_row(step)])
        sink.evaluation(evaluation_row(step))
    sink.finish(RESULT)

    (line,) = messages
    assert "--logger broken" in line
    assert "RuntimeError: the disk is full" in line
    assert [kind for kind, _ in whole.calls] == ["steps", "evaluation"] * 2 + ["close"]
    assert len(broken.calls) < len(whole.calls)
    assert len(json_lines(tmp_path / "metrics.jsonl")) == 2


def test_loggers_of_an_unfinished_run_are_closed_without_a_result(tmp_path):
    logger = FailingLogger()
    sink, _ = sink_with(tmp_path, it=logger)

    sink.steps([step_row(1)])
    sink.close()
    sink.close()

    assert logger.calls == [("steps", [1]), ("close", None)]


def test_loggers_of_a_finished_run_are_closed_once(tmp_path):
    logger = FailingLogger()
    sink, _ = sink_with(tmp_path, it=logger)

    sink.finish(RESULT)
    sink.close()

    assert logger.calls == [("close", RESULT)]


def test_a_run_folder_that_cannot_be_written_is_an_error_with_loggers_too(tmp_path):
    sink, messages = sink_with(tmp_path / "gone", it=FailingLogger())

    with pytest.raises(Exception, match="cannot write to"):
        sink.finish(RESULT)
    assert messages == []


def test_without_loggers_only_the_run_folder_is_written(tmp_path):
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
def test_an_invalid_logger_or_profile_is_refused_with_its_flag(options, message):
    with pytest.raises(UsageError, match=message):
        RunOptions(**options)


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_without_its_package_is_refused_before_work_starts(monkeypatch, name):
    check_loggers([name])
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(UsageError, match=rf"--logger {name} needs .*pip install 'samestep\[loggers\]'"):
        check_loggers([name])
