"""The ledger of the GPU checks has a row for each, orders them, and takes results of GPUs only."""

import json

import pytest
from gpu_checks import ledger
from gpu_checks.registry import CHECKS, by_name

ROWS = {
    "memory": {"date": "2026-11-28", "result": "ok"},
    "loader": {"date": "2026-11-27", "result": "ok"},
    "doctor": {"date": "2026-11-29", "result": "failed"},
    "identity": {"result": "never"},
}


def results_of(**values):
    machine = {"names": ["H100"], "torch": "2.11.0"}
    checks = [
        {"name": "memory", "result": "failed"},
        {"name": "doctor", "result": "ok"},
        {"name": "loader", "result": "skipped"},
    ]
    return {"date": "2027-01-02", "commit": "abc", "machine": machine, "checks": checks, **values}


def test_each_check_has_a_row_and_no_row_has_an_unknown_check():
    rows = ledger.read()

    assert list(rows) == [check.name for check in CHECKS]
    assert {row["result"] for row in rows.values()} <= {"ok", "failed", "never"}
    assert all(
        {"date", "device", "torch", "commit"} <= {*row} for row in rows.values() if row != ledger.NEVER
    )


def test_checks_that_were_not_right_run_first_then_the_oldest():
    checks = [by_name(name) for name in ("memory", "loader", "doctor", "identity", "forking")]

    assert [check.name for check in ledger.ordered(checks, ROWS)] == [
        *("identity", "forking", "doctor"),
        *("loader", "memory"),
    ]


def test_results_of_a_run_replace_the_rows_of_checks_that_ran(tmp_path):
    file, results = tmp_path / "ledger.toml", tmp_path / "results.json"
    file.write_text(ledger.text_of(ROWS))
    results.write_text(json.dumps(results_of()))

    ledger.main(str(results), str(file))

    rows = ledger.read(file)
    run = {"date": "2027-01-02", "device": "H100", "torch": "2.11.0", "commit": "abc"}
    assert rows["memory"] == {**run, "result": "failed"}
    assert rows["doctor"] == {**run, "result": "ok"}
    assert rows["loader"] == ROWS["loader"]
    assert rows["forking"] == {"result": "never"}


def test_results_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="not of a GPU"):
        ledger.merged(ROWS, results_of(machine={"names": [], "torch": "2.13.0"}))


def test_without_a_ledger_the_checks_keep_their_order(tmp_path):
    assert ledger.ordered(CHECKS, ledger.read(tmp_path / "ledger.toml")) == list(CHECKS)
