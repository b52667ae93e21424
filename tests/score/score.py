"""Runs a case by samestep, wrong and right, and judges whether the fault is named, found or missed."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, TypeAlias

from score.cases import Case

Result: TypeAlias = Literal["named", "found", "missed", "not possible here"]
RESULTS: tuple[Result, ...] = ("named", "found", "missed", "not possible here")
SAME = ("same", "same but for exceptions")
"""Verdicts of `samestep verify` on a right script."""
NOT_COMPARED = "not compared"
"""Instead of a verdict, if the command ends with exit code 2, or is ended."""
LIMIT_S = 300.0
"""Seconds after which a run is ended."""


def run_case(case: Case) -> dict[str, Any]:
    """Return what samestep reports on both variants of a case, as `results.json` has it."""
    return {
        "script": checksum(case),
        **{variant: run_variant(case, variant) for variant in ("wrong", "right")},
    }


def checksum(case: Case) -> str:
    """Return a number of the script's bytes, which differs if the script was changed."""
    return hashlib.sha256(case.path.read_bytes()).hexdigest()[:12]


def run_variant(case: Case, variant: str) -> dict[str, Any]:
    """Return what samestep reports on one variant: its exit code, verdict, findings, or its output."""
    code, output, errors = _ended(command(case, variant))
    if case.command == "run":
        shown = re.search(case.shows, output + errors)
        # An expression that only looks ahead matches an empty text.
        return {"exit": code, "shows": (shown.group() or "as expected") if shown and case.shows else ""}
    if code not in (0, 1, 3):
        return {"exit": code, "verdict": NOT_COMPARED, "findings": [], "error": _last_line(errors)}
    report = json.loads(output.splitlines()[-1])
    findings = [
        {key: finding[key] for key in ("code", "gravity", "module", "step")} for finding in report["findings"]
    ]
    return {"exit": code, "verdict": report["verdict"], "findings": findings}


def command(case: Case, variant: str) -> list[str]:
    """Return the command that runs one variant on 2 workers."""
    options = [option.replace("{folder}", str(case.path.parent)) for option in case.options]
    if case.command == "run":
        return ["run", "-n", "2", *options, str(case.path), variant]
    workers = [] if "-n" in options else ["-n", "1,2"]
    return ["verify", "--json", *workers, *options, str(case.path), "--", variant]


def _ended(arguments: list[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr; the exit code of an ended run is that of its signal."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "samestep", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate()
    return process.returncode, output, errors


def _last_line(text: str) -> str:
    """Return the last line, without the path of this folder."""
    lines = text.strip().splitlines() or [""]
    return lines[-1].replace(f"{Path(__file__).parent}/", "")


def result_of(case: Case, record: dict[str, Any] | None) -> Result:
    """Return what counts for a case: findings that the right script has too find nothing."""
    if record is None:
        return "not possible here"
    wrong, right = record["wrong"], record["right"]
    if case.command == "run":
        if wrong["shows"] and not right["shows"]:
            return "named"
        return "found" if wrong["exit"] != 0 else "missed"
    if set(case.expected) & set(SAME):  # no fault at all
        return "named" if wrong["verdict"] in case.expected else "found"
    own = codes_of(wrong) - codes_of(right)
    if own & set(case.expected):
        return "named"
    return "found" if own and wrong["verdict"] not in (*SAME, NOT_COMPARED) else "missed"


def codes_of(report: dict[str, Any]) -> set[str]:
    """Return the codes of the findings of one variant, and the modules that they name."""
    findings = report.get("findings", [])
    modules = {f"@{finding['module']}" for finding in findings if finding["module"]}
    return {finding["code"] for finding in findings} | modules


def is_false_alarm(case: Case, record: dict[str, Any]) -> bool:
    """Return whether samestep accuses the right script."""
    if case.command == "run":
        return bool(record["right"]["exit"] != 0)
    return record["right"]["verdict"] not in SAME
