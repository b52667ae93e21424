"""Loads functions from a user's file.

Only imports, definitions, assignments and what stands under `if` and `try` are executed. A file of a course
also trains, tests and asserts that there are GPUs; this must not keep its functions from being called.
"""

import __future__

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from samestep.base.errors import UsageError

_SKIPPED = (ast.Expr, ast.Assert, ast.Raise, ast.For, ast.While, ast.With)
"""Top-level statements that define nothing."""


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file.

    Raises:
        UsageError: it cannot be read, or is no valid Python.
    """
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        where = "" if error.lineno is None else f":{error.lineno}"
        raise UsageError(f"{path}{where} is not valid Python: {error.msg}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}; give a Python file.") from None


def load_functions(path: Path, names: list[str]) -> list[Callable[..., Any]]:
    """Return functions of a file, by name.

    Statements that fail are skipped: a function that needs what they define fails when it is called.

    Raises:
        UsageError: the file cannot be read, or defines no such function.
    """
    tree = parsed(path)
    module = ModuleType(f"own_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses looks up annotations that are strings
    sys.path.insert(0, str(path.parent))  # as if Python ran the file
    try:
        failures = _execute(tree, module)
    finally:
        sys.path.remove(str(path.parent))
    functions = [getattr(module, name, None) for name in names]
    for name, function in zip(names, functions, strict=True):
        if not callable(function):
            reason = f"{failures[0]} fails" if failures else "give the name of one that it defines"
            raise UsageError(f"{path} has no function {name!r}: {reason}.")
    return functions  # type: ignore[return-value]


def _execute(tree: ast.Module, module: ModuleType) -> list[str]:
    """Execute the definitions of a file; return the statements that failed, with their errors."""
    failures = []
    future = any(
        isinstance(statement, ast.ImportFrom) and statement.module == "__future__" for statement in tree.body
    )
    flags = __future__.annotations.compiler_flag if future else 0
    for statement in tree.body:
        if isinstance(statement, _SKIPPED):
            continue
        code = compile(
            ast.Module([statement], []), str(module.__file__), "exec", flags=flags, dont_inherit=True
        )
        try:
            exec(code, vars(module))  # noqa: S102 - the user's file
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's file raises
            failures.append(f"line {statement.lineno} ({type(error).__name__}: {error})")
    return failures
