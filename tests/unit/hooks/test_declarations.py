"""Each declared hook has a name of its own."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from samestep.hooks import declarations, device_declarations, verify_declarations


@pytest.mark.parametrize("module", [declarations, device_declarations, verify_declarations])
def test_no_name_is_assigned_twice(module):
    tree = ast.parse(Path(module.__file__).read_text())
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
