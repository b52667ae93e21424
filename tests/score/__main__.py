"""Runs the cases of the score, and writes the page about them.

PYTHONPATH=tests python -m score             runs all cases, one after another, and writes the page
PYTHONPATH=tests python -m score --only ID   runs some cases, by id or by the name of a folder
PYTHONPATH=tests python -m score --draw      runs none
"""

import argparse
import json
import os
import platform
import sys
from datetime import datetime, timezone

import torch

import samestep
from score.cases import Case, read_cases
from score.page import PAGE, RECORDS, draw, read_records
from score.score import result_of, run_case


def main() -> int:
    """Run the cases that the command names."""
    options = _options()
    cases = read_cases()
    if options.only:
        cases = [case for case in cases if {case.id, case.folder, case.key} & set(options.only)]
        if not cases:
            print(f"error: no case is named {', '.join(options.only)}.", file=sys.stderr)
            return 2
    if not options.draw:
        for case in cases:
            if case.script:
                _run(case, as_json=options.json)
    _write(read_records())
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m score", description="Scores samestep verify.")
    parser.add_argument(
        "--only", action="append", metavar="ID", help="a case or a folder; more than once for several"
    )
    parser.add_argument("--json", action="store_true", help="print each record as a line of JSON")
    parser.add_argument("--draw", action="store_true", help="run nothing, and draw the page")
    return parser.parse_args()


def _run(case: Case, *, as_json: bool) -> None:
    """Run a case, print the result, and keep its record."""
    now = datetime.now(timezone.utc).date()
    record = {"date": str(now), "environment": _environment(), **run_case(case)}
    RECORDS.write_text(json.dumps({**read_records(), case.key: record}, indent=1, sort_keys=True) + "\n")
    print(json.dumps({case.key: record}) if as_json else f"{case.key}: {result_of(case, record)}", flush=True)


def _environment() -> str:
    versions = (
        f"samestep {samestep.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {versions}"


def _write(records: dict[str, object]) -> None:
    """Write the records of cases that exist, and the page."""
    known = {case.key for case in read_cases() if case.script}
    kept = {key: record for key, record in records.items() if key in known}
    RECORDS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(draw(kept))


if __name__ == "__main__":
    sys.exit(main())
