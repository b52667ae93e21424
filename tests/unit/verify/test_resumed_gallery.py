"""The manifest and the README of the resumed runs list all scripts, with the same figures."""

import re
from itertools import groupby
from pathlib import Path

from gallery_resumed.manifest import SCRIPTS

FOLDER = Path(__file__).parents[2] / "gallery_resumed"


def test_all_scripts_are_listed():
    scripts = {path.name for path in FOLDER.glob("*.py")} - {"manifest.py"}

    assert {script.name for script in SCRIPTS if script.kind != "samestep train"} == scripts


def test_the_readme_has_the_figures_of_the_manifest():
    def figures(script):
        return script.steps, script.stop_after, script.resumes_after, script.resumed_steps

    by_name = sorted(SCRIPTS, key=lambda script: script.name)
    expected = {
        " ".join(name.split()[:2]): "; ".join(
            ", ".join("varies" if n is None else str(n) for n in figures(script)) for script in scripts
        )
        for name, scripts in groupby(by_name, key=lambda script: script.name)
    }
    rows = re.findall(
        r"^\| `(?:samestep )?([^`]+)` \| [^|]+ \| ([^|]+) \|",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )

    assert dict(rows) == expected
