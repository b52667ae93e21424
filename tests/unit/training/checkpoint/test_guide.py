"""The guide describes checkpoints as the code writes and reads them."""

import ast
import re
from pathlib import Path

from samestep.training.checkpoint.snapshot import FILES, MARK

GUIDE = (Path(__file__).parents[4] / "docs" / "guide" / "checkpoints.md").read_text()


def test_the_guide_describes_every_file_of_a_checkpoint_and_no_other():
    assert set(re.findall(r"^\| `([\w.]+)` \|", GUIDE, re.MULTILINE)) == FILES | {MARK}


def test_the_code_in_the_guide_is_valid_python():
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        ast.parse(block)
