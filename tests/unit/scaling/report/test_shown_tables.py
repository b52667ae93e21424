"""The guide and the README show the table of a study as it is printed."""

import re
from pathlib import Path

import pytest

from samestep.scaling.analysis.verdict import conclude
from samestep.scaling.report.tables import study_text
from support.studies import two_cores

ROOT = Path(__file__).parents[4]
WIDTH = 100


@pytest.fixture(scope="module")
def printed():
    return study_text(conclude(two_cores(), 0.7), WIDTH).splitlines()


def shown(page, first):
    """Return the indented block of a page that has the table, from its line `first` on."""
    lines = (ROOT / page).read_text().splitlines()
    begin = lines.index(f"    {first}")
    length = next(k for k, line in enumerate(lines[begin:]) if line and not line.startswith("    "))
    return [line.removeprefix("    ") for line in lines[begin : begin + length]]


def table_head(lines):
    """Return the lines of the names of columns, each as its parts."""
    end = next(k for k, line in enumerate(lines) if line.startswith("workers"))
    begin = next(k for k, line in enumerate(lines) if "speedup over" in line)
    return [re.split(r"  +", line.strip()) for line in lines[begin : end + 1]]


def test_the_guide_shows_the_output_of_the_stored_study(printed):
    block = shown("docs/guide/scaling.md", printed[0])

    assert "\n".join(block).rstrip() == "\n".join(printed)


def test_the_readme_shows_the_same_columns(printed):
    block = shown(
        "README.md", "$ samestep scale examples/image_classification.py -n 1,2 --steps 20 --repeats 3"
    )

    *above, names = table_head(printed)
    assert names[-1] == "worth it"  # the README's command has no `--worth`
    assert table_head(block) == [*above, names[:-1]]


def test_the_output_has_at_most_100_columns_and_every_column_of_speed(printed):
    assert max(map(len, printed)) <= WIDTH
    assert table_head(printed)[-1] == [
        *("workers", "threads", "samples/s", "95 % interval", "all 2 cores", "with 1 thread"),
        *("efficiency", "worth it"),
    ]
