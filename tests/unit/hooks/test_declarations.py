"""Each declared hook has a name of its own."""

import ast
from collections import Counter
from pathlib import Path

from samestep.hooks import declarations


def test_no_name_is_assigned_twice():
    tree = ast.parse(Path(declarations.__file__).read_text())
    names = Counter(
        name.id
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    )

    assert names
    assert [name for name, count in names.items() if count > 1] == []
