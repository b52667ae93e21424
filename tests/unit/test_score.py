"""The page of the score is that of its cases and results."""

import ast

import pytest

from score.cases import SOURCES, Case, read_cases
from score.page import PAGE, draw, read_records
from score.score import checksum, is_false_alarm, result_of

CASES = read_cases()
SCRIPTS = [case for case in CASES if case.script]
EXAMPLE = Case(folder="a", id="1", title="", source="", expected=["never-averaged", "@layers.0"])
RUN = Case(folder="a", id="2", title="", source="", command="run", shows="rank 1 waits")


def report(verdict="same", *codes, module=None):
    findings = [{"code": code, "gravity": "fault", "module": module, "step": 0} for code in codes]
    return {"exit": int(verdict == "different"), "verdict": verdict, "findings": findings}


def test_the_page_is_that_of_the_results():
    assert PAGE.read_text() == draw(read_records()), "run PYTHONPATH=tests python -m score --draw"


def test_each_script_has_the_result_of_its_present_text():
    records = read_records()
    assert {case.key for case in SCRIPTS} == set(records)
    changed = [case.key for case in SCRIPTS if checksum(case) != records[case.key]["script"]]
    assert not changed, f"run PYTHONPATH=tests python -m score --only ID for {changed}"


def test_a_case_has_a_name_of_its_own_and_a_script_or_a_reason():
    assert SOURCES
    assert len({case.key for case in CASES}) == len(CASES)
    assert all(bool(case.script) != bool(case.not_possible) for case in CASES)
    assert all(case.alone for case in SCRIPTS)


def test_a_missed_fault_has_a_remark():
    records = read_records()
    missed = [case for case in SCRIPTS if result_of(case, records[case.key]) == "missed"]
    assert [case.key for case in missed if not case.note] == []


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case.key)
def test_a_script_begins_with_its_fault_and_can_be_right(case):
    text = case.path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert text.count("WRONG") >= 2


@pytest.mark.parametrize(
    ("wrong", "right", "result"),
    [
        (report(), report(), "missed"),
        (report("different", "never-averaged"), report(), "named"),
        (report("same", "never-averaged"), report(), "named"),
        (report("different", "gradient", module="layers.0"), report(), "named"),
        (report("different", "gradient", module="layers.1"), report(), "found"),
        (report("inconclusive", "nan-loss"), report(), "found"),
        (report("different", "never-averaged"), report("different", "never-averaged"), "missed"),
        (report("not compared"), report(), "missed"),
    ],
)
def test_a_fault_is_named_found_or_missed(wrong, right, result):
    assert result_of(EXAMPLE, {"wrong": wrong, "right": right}) == result


@pytest.mark.parametrize(
    ("wrong", "right", "result"),
    [
        ({"exit": 1, "shows": "rank 1 waits"}, {"exit": 0, "shows": ""}, "named"),
        ({"exit": 1, "shows": ""}, {"exit": 0, "shows": ""}, "found"),
        ({"exit": 0, "shows": ""}, {"exit": 0, "shows": ""}, "missed"),
    ],
)
def test_a_run_names_its_fault_in_the_output(wrong, right, result):
    assert result_of(RUN, {"wrong": wrong, "right": right}) == result


def test_a_case_without_a_script_is_not_possible():
    assert result_of(EXAMPLE, None) == "not possible here"


def test_an_accused_right_script_is_a_false_alarm():
    assert is_false_alarm(EXAMPLE, {"right": report("different", "gradient")})
    assert not is_false_alarm(EXAMPLE, {"right": report("same but for exceptions", "random-per-worker")})
    assert is_false_alarm(RUN, {"right": {"exit": 1, "shows": ""}})
