"""Draws the page of the score from the cases and from `results.json`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from score.cases import SOURCES, Case, Source, read_source
from score.score import RESULTS, is_false_alarm, result_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "score.md"
RECORDS = Path(__file__).parent / "results.json"
_HEAD = """# The score of verify

[`samestep verify`](../guide/verify.md) was run on public faults of trainings. Each is rebuilt as a short
script for CPUs, in a wrong and a right variant, with the cause that the report or paper states. Which codes
name that cause was written down before the first run. Where a check was added because of a missed fault, a
remark names it: such a case does not show that other faults are named.

| result | the wrong variant |
|---|---|
| named | the report has a code or module that names the fault, and that the right variant's has not |
| found | the verdict is `different` or `inconclusive`, by other findings that the right variant has not |
| missed | the rest |
| not possible here | the fault needs hardware or a program that is not at hand |

A false alarm is a right variant that is not `same` or `same but for exceptions`.
"""
_COMMANDS = """`make score` runs all cases and writes this page; `PYTHONPATH=tests python -m score --only ID`
runs some. The scripts are in `tests/score`."""


def read_records() -> dict[str, Any]:
    """Return what was measured, by the keys of the cases."""
    return dict(json.loads(RECORDS.read_text())) if RECORDS.exists() else {}


def draw(records: dict[str, Any]) -> str:
    """Return the page."""
    sources = [read_source(folder) for folder in SOURCES]
    parts = [_HEAD, _summary(sources, records), _measured(records)]
    return "\n".join([*parts, *(_section(source, records) for source in sources)])


def _summary(sources: list[Source], records: dict[str, Any]) -> str:
    lines = [
        f"| source | cases | {' | '.join(RESULTS)} | false alarms |",
        "|---" * (len(RESULTS) + 3) + "|",
    ]
    for source in sources:
        counts = Counter(result_of(case, records.get(case.key)) for case in source.cases)
        run = [case for case in source.cases if case.key in records]
        alarms = sum(is_false_alarm(case, records[case.key]) for case in run)
        cells = [str(counts[result]) for result in RESULTS]
        lines.append(
            f"| {source.title} | {len(source.cases)} | {' | '.join(cells)} | {alarms} of {len(run)} |"
        )
    return "\n".join([*lines, ""])


def _measured(records: dict[str, Any]) -> str:
    """Return when and where the figures were measured."""
    counts = Counter((record["date"], record["environment"]) for record in records.values())
    lines = [
        f"* {number} cases on {date}: {environment}" for (date, environment), number in sorted(counts.items())
    ]
    return "\n".join(["Measured with 2 workers:", "", *lines, "", _COMMANDS, ""])


def _section(source: Source, records: dict[str, Any]) -> str:
    rows = [_row(case, records.get(case.key)) for case in source.cases]
    remarks = [f"* {case.id}: {text}" for case in source.cases if (text := case.not_possible or case.note)]
    head = ["| | fault | alone | verify | right variant | result |", "|---|---|---|---|---|---|"]
    about = [source.about.strip(), ""] if source.about else []
    notes = ["Remarks:", "", *remarks, ""] if remarks else []
    return "\n".join([f"## {source.title}", "", *about, *head, *rows, "", *notes])


def _row(case: Case, record: dict[str, Any] | None) -> str:
    link = f"[{case.id}]({case.source})" if case.source.startswith("http") else case.id
    if record is None:
        return f"| {link} | {case.title} | | | | not possible here |"
    reports = (_report(record[variant]) for variant in ("wrong", "right"))
    cells = [link, case.title, case.alone, *reports, result_of(case, record)]
    return f"| {' | '.join(cells)} |"


def _report(report: dict[str, Any]) -> str:
    """Return a report in some words: its verdict, and the codes and modules of its findings."""
    if "shows" in report:
        return f"exit code {report['exit']}" + (f", `{report['shows']}`" if report["shows"] else "")
    codes = list(dict.fromkeys(_code(finding) for finding in report["findings"]))
    return report["verdict"] + (f": {', '.join(codes)}" if codes else "")


def _code(finding: dict[str, Any]) -> str:
    module = f" (`{finding['module']}`)" if finding["module"] else ""
    note = ", a note" if finding["gravity"] == "note" else ""
    code = finding["code"]
    return f"`{code}`{module}{note}"
