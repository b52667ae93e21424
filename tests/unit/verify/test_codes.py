"""The guide explains every code of a finding, and no other."""

import re
from pathlib import Path
from typing import get_args

from samestep.verify.verdict import Cause, Finding, NotCompared, NoteCode, Report, Row

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "verify.md"


def test_the_guide_lists_every_cause():
    causes = GUIDE.read_text().partition("\n## Causes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z].*?) \|", causes, re.MULTILINE)
    assert {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)} == set(get_args(Cause))


def test_the_guide_lists_every_code_of_a_note():
    notes = GUIDE.read_text().partition("\n## Notes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z].*?) \|", notes, re.MULTILINE)
    assert {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)} == set(get_args(NoteCode))


def test_the_guide_lists_every_code_of_parts_that_were_not_compared():
    row = next(line for line in GUIDE.read_text().splitlines() if line.startswith("| `not_compared`"))
    assert set(re.findall(r"`([a-z0-9-]+)`", row)) == set(get_args(NotCompared))


def test_exceptions_alone_are_not_different():
    def report(*exceptions):
        findings = [
            Finding(cause="local-print", message="", workers=2, kind="exception" if one else "fault")
            for one in exceptions
        ]
        row = Row(workers=2, steps=1, deviations={"loss": 0.5}, is_rounding=False, findings=findings)
        return Report(rows=[row], findings=[], steps=1, not_compared={"parameters": "parameter"}).as_json()

    assert [report(*one)["verdict"] for one in ((), (True,), (True, False))] == [
        "same",
        "same but for exceptions",
        "different",
    ]
    assert report()["not_compared"] == ["parameters"]
    assert report()["max_relative_deviation"] == {"2": 0.5}
