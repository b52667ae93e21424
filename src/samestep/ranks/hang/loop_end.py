"""Decides from the lines of ranks whether one of them has left the training loop in which another one is."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_OF_STEPS = ("backward", "step")
"""Methods whose call makes a loop a training loop."""


def is_in_training_loop(line: str) -> bool:
    """Return whether a position, as ``file:line: text``, is in a loop that takes optimizer steps."""
    file, number = _place(line)
    tree = _parsed(file)
    return tree is not None and bool(_training_loops(tree, number))


def has_left_loop(line: str, inside: str) -> bool:
    """Return whether a rank at one line has left the training loop in which a rank at another line is.

    A line that only some ranks reach, by a condition on the rank, proves nothing about the loop.

    Args:
        line: position of the first rank, as ``file:line: text``.
        inside: position of the other rank.
    """
    (file, here), (other, there) = _place(line), _place(inside)
    tree = _parsed(file) if file == other else None
    if tree is None:
        return False
    loops = _training_loops(tree, there)
    return bool(loops) and not _depends_on_rank(tree, here) and _is_behind(tree, here, loops[-1])


def _place(line: str) -> tuple[str, int]:
    file, _, rest = line.partition(".py:")
    number = rest.partition(":")[0]
    return (f"{file}.py", int(number)) if number.isdigit() else ("", 0)


def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError, SyntaxError):
        return None


def _training_loops(tree: ast.AST, line: int) -> list[_Loop]:
    """Return the loops around a line that take steps, outermost first."""
    return [one for one in _around(tree, line) if isinstance(one, _Loop) and _takes_steps(one)]


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the nodes with statements that contain a line, outermost first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node
            yield from _around(node, line)
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            yield from _around(node, line)


def _calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name of each called function or method, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node.lineno


def _takes_steps(loop: ast.AST) -> bool:
    return any(name in _OF_STEPS for name, _ in _calls(loop))


def _function(tree: ast.AST, line: int) -> _Function | None:
    """Return the innermost function that contains a line."""
    found = [node for node in _around(tree, line) if isinstance(node, _Function)]
    return found[-1] if found else None


def _depends_on_rank(tree: ast.AST, line: int) -> bool:
    tests = [ast.unparse(node.test) for node in _around(tree, line) if isinstance(node, ast.If)]
    return any("rank" in test.lower() or "is_main" in test for test in tests)


def _is_behind(tree: ast.AST, line: int, loop: _Loop) -> bool:
    """Return whether a line is executed after a loop: below it, or below a call of its function."""
    of_loop, of_line = _function(tree, loop.lineno), _function(tree, line)
    if of_line is of_loop:
        return line > (loop.end_lineno or loop.lineno)
    if of_loop is None:
        return False
    return any(name == of_loop.name and at <= line for name, at in _calls(of_line or tree))
