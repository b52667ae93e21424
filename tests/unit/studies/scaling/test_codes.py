"""The reference has a table of all codes of a study."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
FOLDERS = ("studies/scaling/analysis", "studies/scaling/sweep", "studies/scaling/report")
TABLES = ("### codes of the summary", "### findings")


def documented() -> set[str]:
    text = (ROOT / "docs/reference/scaling.md").read_text()
    tables = "".join(text.partition(heading)[2].partition("\n##")[0] for heading in TABLES)
    rows = [row.split("|")[1] for row in tables.splitlines() if row.startswith("| `")]
    fields = {"kind", "code", "words", "workers", "mode", "variant"}
    kinds = {"baseline", "caveat", "advice", "comparison", "note"}
    return set(re.findall(r"`([a-z-]+)`", "".join(rows))) - fields - kinds


def calls(tree: ast.AST, *names: str):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def test_all_codes_are_documented_and_no_others():
    trees = [
        ast.parse(path.read_text()) for one in FOLDERS for path in (ROOT / "src/samestep" / one).glob("*.py")
    ]
    given = [
        call.args[:1] for tree in trees for call in calls(tree, "note", "_finding", "_advice", "Summary")
    ]
    given += [call.args[1:2] for tree in trees for call in calls(tree, "Finding")]
    used = {node.value for nodes in given for node in nodes if isinstance(node, ast.Constant)}
    known = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}

    assert used <= documented()
    assert documented() <= known
    assert len(used) > 40
