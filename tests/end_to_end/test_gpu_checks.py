"""The checks on GPUs run on the CPU, as far as it can run them, by the command that a user types."""

import json
import subprocess
import sys

import pytest

NAMES = "device-facts,random-state,staging,forking,doctor-copies"


@pytest.mark.timeout(300)
def test_checks_run_on_the_cpu(tmp_path):
    file = tmp_path / "gpu.json"
    ended = subprocess.run(
        [sys.executable, "-m", "samestep.testing.gpu", "--device", "cpu", "--only", NAMES, "--json", file],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(file.read_text())
    results = {one["name"]: one["result"] for one in found["checks"]}
    assert results == {**dict.fromkeys(NAMES.split(","), "ok"), "doctor-copies": "skipped"}
    assert found["machine"]["type"] == "cpu"
