"""Each code of a study is in the tables of the reference, and no other one."""

import ast
import re
from pathlib import Path

from samestep.scaling.analysis.verdict import SENTENCES

ROOT = Path(__file__).parents[3]


def documented(heading: str) -> set[str]:
    """Return the codes in the first column of a table of the reference."""
    text = (ROOT / "docs/reference/scaling.md").read_text()
    table = text.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))))


def codes_of_notes() -> set[str]:
    """Return the text constants among the first arguments of all notes of the package."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src/samestep/scaling").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    first = [one.args[0] for one in calls if isinstance(one.func, ast.Name) and one.func.id == "Note"]
    constants = [node.value for one in first for node in ast.walk(one) if isinstance(node, ast.Constant)]
    return {text for text in constants if isinstance(text, str)}


def test_all_codes_of_verdicts_are_documented_and_no_others():
    assert set(SENTENCES) == documented("codes of the verdict")


def test_all_codes_of_notes_are_documented_and_no_others():
    assert codes_of_notes() == documented("codes of notes")
