"""The notebooks print what they store, with workers that are processes."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_notebooks_print_their_stored_outputs():
    command = [sys.executable, "-m", "support.notebooks", "--check"]
    variables = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
