"""The command of the score finds what `results.json` has."""

import pytest

from score.cases import read_cases
from score.page import read_records
from score.score import run_case
from support.tiers import mostly_long

CASES = [case for case in read_cases() if case.script]
SHORT = ("traincheck/SO-60335387",)
"""A case that `make test` runs, in some seconds."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", mostly_long(CASES, SHORT, lambda case: case.key))
def test_a_case_has_the_result_that_the_page_states(case):
    record, kept = run_case(case), read_records()[case.key]
    for variant in ("wrong", "right"):
        assert summary(record[variant]) == summary(kept[variant]), record[variant]


def summary(report):
    return report["exit"], report.get("verdict"), report.get("shows"), codes(report)


def codes(report):
    return {finding["code"] for finding in report.get("findings", [])}
