"""What the guide says of checkpoints is what the code does."""

import ast
import re
from pathlib import Path

from samestep.training.checkpoint.snapshot import FILES, MARK
from samestep.training.checkpoint.third_party import WRAPPINGS

GUIDE = (Path(__file__).parents[4] / "docs" / "guide" / "checkpoints.md").read_text()


def test_every_file_of_a_checkpoint_is_described_and_no_other():
    assert set(re.findall(r"^\| `([\w.]+)` \|", GUIDE, re.MULTILINE)) == FILES | {MARK}


def test_every_usual_wrapping_is_named():
    (told,) = re.findall(r"under its usual keys: ([^;]+);", GUIDE)

    assert tuple(re.findall(r"`(\w+)`", told)) == WRAPPINGS


def test_the_shown_code_is_code():
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        ast.parse(block)
