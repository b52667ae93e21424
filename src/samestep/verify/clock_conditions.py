"""Finds whether the clock decides when a script ends a loop, so that its runs have unequal numbers of steps.

A loop with a time budget makes fewer steps where a step takes longer, also on one worker::

    while time.time() - start < 3600: ...
    if elapsed > budget: break
"""

import ast
from collections.abc import Iterator, Sequence

_CLOCKS = frozenset(
    name + suffix
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
) | {"now", "utcnow"}
"""Functions of Python that return the present time."""
_ARITHMETIC = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.NamedExpr)
_OF_NUMBERS = frozenset(("abs", "float", "int", "max", "min", "round"))
"""Functions whose result is a time if an argument is."""
_ENDS = (ast.Break, ast.Return, ast.Raise)


def ends_loops_by_clock(trees: Sequence[ast.Module]) -> bool:
    """Return whether a comparison with a time ends a loop or a function of a script's modules."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    times = _names_of_times(nodes)
    return any(_ends_by(node, times) for node in nodes)


def _ends_by(node: ast.AST, times: set[str]) -> bool:
    if isinstance(node, ast.While):
        return _is_time(node.test, times)
    if not isinstance(node, ast.If) or not _is_time(node.test, times):
        return False
    return any(isinstance(inner, _ENDS) for part in (*node.body, *node.orelse) for inner in ast.walk(part))


def _names_of_times(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of variables, attributes and functions whose values are computed from the clock."""
    times: set[str] = set()
    before = -1
    while len(times) > before:
        before = len(times)
        times.update(name for node in nodes for name in _set_to_time(node, times))
    return times


def _set_to_time(node: ast.AST, times: set[str]) -> Iterator[str]:
    """Yield the names that a statement sets to a time; that of a function which returns one."""
    if isinstance(node, ast.FunctionDef):
        values = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
        if any(value is not None and _is_time(value, times) for value in values):
            yield node.name
    elif isinstance(node, ast.Assign):
        yield from (name for target in node.targets for name in _times_in(target, node.value, times))
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
        yield from _times_in(node.target, node.value, times)


def _times_in(target: ast.expr, value: ast.expr, times: set[str]) -> Iterator[str]:
    """Yield the names of a target that an assignment sets to a time."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, of_part in zip(target.elts, value.elts, strict=False):
            yield from _times_in(part, of_part, times)
    elif (name := _name_of(target)) and _is_time(value, times):
        yield name


def _is_time(node: ast.AST, times: set[str]) -> bool:
    """Return whether an expression is a time, or a number or a decision that is computed from one."""
    if isinstance(node, ast.Call):
        name = _name_of(node.func)
        is_method = isinstance(node.func, ast.Attribute) and _is_time(node.func.value, times)
        is_of_times = name in _OF_NUMBERS and any(_is_time(argument, times) for argument in node.args)
        return name in _CLOCKS or name in times or is_method or is_of_times
    if isinstance(node, _ARITHMETIC):
        return any(_is_time(part, times) for part in ast.iter_child_nodes(node))
    return _name_of(node) in times


def _name_of(node: ast.AST) -> str:
    """Return the name of a variable, or the last one of an attribute; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
