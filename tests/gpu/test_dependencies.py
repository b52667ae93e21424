"""The GPU checks report missing packages before they import any."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from gpu_checks import __main__ as program
from gpu_checks.context import environment
from gpu_checks.dependencies import NEEDED, missing

ENVIRONMENT = {**os.environ, **environment()}
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def version_of(name):
    found = {"old": "0.27.9", "equal": "0.29", "new": "2.11.0+cu130"}
    if name not in found:
        raise PackageNotFoundError(name)
    return found[name]


def test_the_dependencies_are_those_of_the_package():
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", PYPROJECT.read_text(), re.DOTALL | re.MULTILINE)[1]
    own = re.findall(r'^    "([^;"]+)', listed, re.MULTILINE)

    assert {*NEEDED, "tomli>=2"} == set(own)


def test_packages_that_are_missing_or_too_old_are_found():
    needed = ["old>=0.29", "equal>=0.29", "new>=2.6", "absent>=1.8"]

    assert missing(needed, version_of) == ["old>=0.29 (0.27.9 is installed)", "absent>=1.8"]


def test_missing_packages_are_a_usage_error(monkeypatch, capsys):
    monkeypatch.setattr(program, "missing", lambda: ["pooch>=1.8", "tomli-w>=1.0"])

    assert program.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pooch>=1.8, tomli-w>=1.0" in line


@pytest.mark.parametrize("module", ["numpy", "psutil", "rich", "torch", "typer"])
def test_packages_are_compared_before_any_is_imported(module):
    code = f"""
import sys
from gpu_checks import __main__ as program
program.missing = lambda: ["pooch>=1.8"]
assert program.main([]) == 2
sys.exit({module!r} in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=False)
    assert ended.returncode == 0
