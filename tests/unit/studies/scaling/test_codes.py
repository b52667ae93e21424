"""Each code of a study has one sentence, is used, and is in the tables of the reference."""

import ast
import re
from pathlib import Path

import pytest

from samestep.studies.scaling.analysis.statements import STATEMENTS

ROOT = Path(__file__).parents[4]
FOLDERS = ("studies/scaling/analysis", "studies/scaling/sweep", "studies/scaling/report", "cli")


def documented(kind: str) -> set[str]:
    text = (ROOT / "docs/reference/scaling.md").read_text()
    head = "### codes of the summary" if kind == "summary" else f"| `{kind}` | meaning |"
    table = text.partition(f"{head}\n")[2].lstrip().partition("\n\n")[0]
    return set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))))


def constants() -> set[str]:
    """Return the text constants of all modules but that of the sentences."""
    paths = [path for one in FOLDERS for path in (ROOT / "src/samestep" / one).glob("*.py")]
    nodes = [
        node
        for path in paths
        if path.name != "statements.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {node.value for node in nodes}


@pytest.mark.parametrize("kind", STATEMENTS)
def test_all_codes_are_documented_and_no_others(kind):
    assert set(STATEMENTS[kind]) == documented(kind)


def test_every_sentence_is_used():
    assert {code for codes in STATEMENTS.values() for code in codes} <= constants()


def test_every_statement_has_a_code_of_the_table():
    trees = [
        ast.parse(path.read_text()) for one in FOLDERS for path in (ROOT / "src/samestep" / one).glob("*.py")
    ]
    calls = [
        node.args
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    kinds = [[one.value for one in args[:2] if isinstance(one, ast.Constant)] for args in calls]

    assert all(code in STATEMENTS[kind] for kind, code in filter(None, kinds))
    assert sum(map(len, STATEMENTS.values())) > 60
