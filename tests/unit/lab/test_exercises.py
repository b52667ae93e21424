"""Starter files and serial scripts are made from the solutions."""

import ast
import json
import re
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.cli.main import run_command
from samestep.verify.verdict import Finding, Report
from samestep_lab.command import rank_counts, start
from samestep_lab.exercises.grading import CHECKS, grade_file
from samestep_lab.exercises.own_function import load_functions
from samestep_lab.exercises.starters import EXERCISES, serial, serial_path, solution, starter, write_starter


@pytest.mark.parametrize("name", EXERCISES)
def test_a_starter_is_valid_without_the_solution_and_without_samestep(name):
    text = starter(solution(name))

    assert ast.parse(text)
    assert text != solution(name)
    assert not any(word in text for word in ("samestep", ">>>", "<<<", "# |"))


@pytest.mark.parametrize("name", [name for name, one in EXERCISES.items() if not one.function])
def test_a_serial_script_calls_nothing_of_torch_distributed(name):
    calls = [
        ast.unparse(one.func)
        for one in ast.walk(ast.parse(serial(solution(name))))
        if isinstance(one, ast.Call)
    ]

    assert "torch.save" in calls
    assert not [call for call in calls if call.startswith("dist.")]


def test_functions_of_exercises_have_a_check():
    assert {one.function for one in EXERCISES.values() if one.function} <= set(CHECKS)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_untouched_starter_is_unfinished(name, tmp_path):
    path, *others = write_starter(name, tmp_path / "new")
    (grade,) = grade_file(path, [1, 2], verify=None)

    assert [one.exists() for one in others] == [True] * (not EXERCISES[name].function)
    assert [fault.code for fault in grade.faults] == ["unfinished"]
    with pytest.raises(UsageError):  # not overwritten
        write_starter(name, tmp_path / "new")


def test_the_command_writes_a_script_and_its_serial_script(tmp_path, capsys):
    start("six-steps", tmp_path)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"six_steps.py", "six_steps_serial.py"}
    assert str(tmp_path / "six_steps.py") in capsys.readouterr().err


def test_the_files_of_an_exercise_are_json(tmp_path, capsys):
    assert run_command(["lab", "start", "ring", str(tmp_path), "--json"]) == 0

    (file,) = map(str, tmp_path.iterdir())
    assert json.loads(capsys.readouterr().out) == {"exercise": "ring", "files": [file]}


@pytest.mark.parametrize(("variables", "colored"), [({}, False), ({"FORCE_COLOR": "1"}, True)])
def test_a_grade_has_its_color_on_a_terminal_only(tmp_path, capsys, monkeypatch, variables, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    write_starter("ring", tmp_path)

    assert run_command(["lab", "grade", str(tmp_path / "ring.py"), "--ranks", "2"]) == 1

    out = capsys.readouterr().out
    assert "unfinished" in out
    assert ("\x1b[1;31m" in out) == colored


def test_an_unknown_exercise_is_refused(tmp_path):
    with pytest.raises(UsageError):
        write_starter("scatter", tmp_path)


@pytest.mark.parametrize(
    "text", ["def broadcast(", "@missing\ndef broadcast(tensor): ...", "print(1)", "\0", None]
)
def test_a_file_that_cannot_be_graded_is_refused_in_one_line(text, tmp_path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as raised:
        grade_file(path, [2], verify=None)
    assert "\n" not in str(raised.value)


def test_a_dataclass_of_a_file_with_annotations_as_strings_is_defined(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Parts:\n    count: int\n"
        "def all_reduce(tensor, world):\n    return Parts(count=3).count\n"
    )
    (function,) = load_functions(path, ["all_reduce"])
    assert function(None, None) == 3


@pytest.mark.parametrize(("text", "sizes"), [("1-5", [1, 2, 3, 4, 5]), ("4,2", [2, 4]), ("3", [3])])
def test_numbers_of_ranks_are_parsed(text, sizes):
    assert rank_counts(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "0-2", "5-1", "1-9", "a", "1-", "-1", "1,,2", "99999999999"])
def test_wrong_ranks_are_refused(text):
    with pytest.raises(UsageError):
        rank_counts(text)


def test_the_guide_lists_all_exercises():
    page = (Path(__file__).parents[3] / "docs" / "lab" / "exercises.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| .* \|$", page, re.MULTILINE)
    assert rows == list(EXERCISES)


def test_a_script_that_cannot_be_compared_is_not_passed(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(solution("trainer"))
    serial_path(script).write_text(serial(solution("trainer")))
    unknown = Finding(cause="zero-loss", message="the loss is 0.", workers=2)
    report = Report(rows=[], findings=[unknown], steps=4)

    (result,) = grade_file(script, [2], verify=lambda *_: report)

    assert [fault.code for fault in result.faults] == ["zero-loss"]
