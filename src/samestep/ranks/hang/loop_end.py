"""Decides from the lines of ranks whether one of them has left the training loop in which another one is."""

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_OF_STEPS = ("backward", "step")  # methods whose call makes a loop a training loop


def is_in_training_loop(line: str) -> bool:
    """Return whether a position, as ``file:line: text``, is in a loop that takes optimizer steps."""
    file, number = _place(line)
    with suppress(RecursionError):  # of a very deep script
        tree = _parsed(file)
        return tree is not None and bool(_training_loops(tree, number))
    return False


def is_in_step(line: str) -> bool:
    """Return whether a position is in a loop that takes optimizer steps without a loop inside of it."""
    file, number = _place(line)
    with suppress(RecursionError):
        tree = _parsed(file)
        loops = [] if tree is None else [one for one in _around(tree, number) if isinstance(one, _Loop)]
        return bool(loops) and _takes_steps(loops[-1]) and not any(map(_takes_steps, _loops_in(loops[-1])))
    return False


def has_left_loop(line: str, inside: str) -> bool:
    """Return whether a rank at one line has left the training loop in which a rank at another line is.

    A line that a rank reaches by a condition proves nothing about the loop: the condition may be its rank.
    Both positions are as ``file:line: text``.
    """
    (file, here), (other, there) = _place(line), _place(inside)
    with suppress(RecursionError):
        tree = _parsed(file) if file == other else None
        loops = [] if tree is None else _training_loops(tree, there)
        return tree is not None and bool(loops) and _is_behind(tree, here, loops[-1])
    return False


def _place(line: str) -> tuple[str, int]:
    file, _, rest = line.partition(".py:")
    number = rest.partition(":")[0]
    return (f"{file}.py", int(number)) if number.isdigit() else ("", 0)


@cache
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


def _loops_in(loop: _Loop) -> list[ast.AST]:
    return [node for node in ast.walk(loop) if isinstance(node, _Loop) and node is not loop]


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


def _is_behind(tree: ast.AST, line: int, loop: _Loop) -> bool:
    """Return whether every rank executes a line after a loop: below it, or in a function called later."""
    of_loop, of_line = _function(tree, loop.lineno), _function(tree, line)
    if of_line is of_loop:
        end = loop.end_lineno or loop.lineno
        return line > end and not _is_conditional(tree, line, end)
    if of_loop is None or (of_line is not None and _takes_steps(of_line)):
        return False
    # A caller of both functions, or the function of the line itself, calls the loop's function before.
    return any(
        first < later and not _is_conditional(tree, later, first)
        for first in _calls_of(tree, of_loop.name)
        for later in ([line] if of_line is None else [line, *_calls_of(tree, of_line.name)])
        if _function(tree, first) is _function(tree, later)
    ) and not (of_line is not None and _is_conditional(of_line, line, of_line.lineno))


def _calls_of(tree: ast.AST, name: str) -> list[int]:
    return [line for called, line in _calls(tree) if called == name]


def _is_conditional(tree: ast.AST, line: int, before: int) -> bool:
    """Return whether a line is under a condition that an earlier line is not under, or may be skipped."""
    around = [node for node in _around(tree, line) if isinstance(node, ast.If)]
    if any(not node.lineno <= before <= (node.end_lineno or 0) for node in around):
        return True
    return any(
        isinstance(node, ast.If) and before < node.lineno < line and _skips(node) for node in ast.walk(tree)
    )


def _skips(node: ast.If) -> bool:
    return any(isinstance(one, ast.Continue | ast.Return | ast.Break) for one in ast.walk(node))
