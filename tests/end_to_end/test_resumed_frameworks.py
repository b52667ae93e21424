"""Scripts of training libraries, and a built-in training, that resume, are compared with runs that do not."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_resumed.manifest import SCRIPTS
from support.systems import missing

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-frameworks/bin/python"
LIBRARIES = ("trainer", "accelerate", "lightning")


def verified(interpreter, script, folder, environment):
    """Return the report on a script that is ended and resumed."""
    words = [*script.command[1:]] if script.kind == "samestep train" else [script.command[0]]
    # Its checkpoints are written beside the training: only at SIGTERM one is certainly complete.
    module = ["-m", "--end-by", "term"] if script.kind == "samestep train" else []
    more = ["--resume-with", shlex.join(script.resume)] if script.resume else []
    options = ["--json", "--resume-at", str(script.stop_after), *more, *module]
    done = subprocess.run(
        [interpreter, "-m", "samestep", "verify", *options, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    "script", [script for script in SCRIPTS if script.kind in LIBRARIES], ids=lambda script: script.name
)
def test_a_script_of_a_library_is_compared_with_its_uninterrupted_run(script, tmp_path):
    if not PYTHON.exists():
        missing("frameworks", f"{PYTHON.parents[1]} is missing; `make test` creates it")
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    report = verified(str(PYTHON), script, tmp_path, environment)
    codes = [finding["code"] for finding in report["findings"] if finding["gravity"] == "fault"]
    assert codes == ([script.cause] if script.cause else [])
    assert report["verdict"].startswith(
        script.verdict
    )  # the Trainer prints a mean of its own steps: an exception


def test_a_built_in_training_goes_on_where_it_was_ended(tmp_path):
    (script,) = [script for script in SCRIPTS if script.kind == "samestep train"]
    report = verified(sys.executable, script, tmp_path, None)
    assert [finding for finding in report["findings"] if finding["gravity"] == "fault"] == []
