"""Reads and updates the ledger of the checks: ``python -m gpu_checks.ledger RESULTS [LEDGER]``.

The ledger has the last result of each check on a GPU: date, device, versions and commit.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gpu_checks.registry import CHECKS, Check
from samestep.base.documents import parse_toml

LEDGER = Path(__file__).parents[1] / "ledger.toml"
"""The ledger of a source tree."""
HEAD = """\
# The last result of each check on a GPU. This command merges the results of a run:
#     python -m gpu_checks.ledger RESULTS
# Checks whose last result is not `ok` run first, then those with the oldest date. `never`: no GPU has run it.
"""
Row: TypeAlias = Mapping[str, str]
NEVER: Row = {"result": "never"}


def read(file: Path = LEDGER) -> dict[str, Row]:
    """Return the row of each check; none without a ledger."""
    return parse_toml(file.read_text()) if file.exists() else {}


def ordered(checks: Sequence[Check], rows: Mapping[str, Row]) -> list[Check]:
    """Return the checks whose last result is not ``ok`` first, then those with the oldest."""

    def age(check: Check) -> tuple[bool, str]:
        row = rows.get(check.name, NEVER)
        return row["result"] == "ok", row.get("date", "")

    return sorted(checks, key=age)


def merged(rows: Mapping[str, Row], results: Mapping[str, Any]) -> dict[str, Row]:
    """Return the rows with the results of a run on a GPU; checks that did not run keep their rows.

    Raises:
        ValueError: the run was not on a GPU.
    """
    machine = results["machine"]
    if not machine["names"]:
        raise ValueError("these results are not of a GPU, and the ledger lists results of GPUs only")
    run = {"date": results["date"], "device": machine["names"][0], "torch": machine["torch"]}
    new = {
        one["name"]: {**run, "commit": results["commit"], "result": one["result"]}
        for one in results["checks"]
        if one["result"] in ("ok", "failed")
    }
    return {check.name: new.get(check.name, rows.get(check.name, NEVER)) for check in CHECKS}


def text_of(rows: Mapping[str, Row]) -> str:
    """Return the content of a ledger."""
    lines = (
        f"{name} = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in row.items())} }}\n"
        for name, row in rows.items()
    )
    return f"{HEAD}\n{''.join(lines)}"


def main(results: str, ledger: str = str(LEDGER)) -> None:
    """Merge the results of a run into a ledger."""
    file = Path(ledger)
    file.write_text(text_of(merged(read(file), json.loads(Path(results).read_text()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
