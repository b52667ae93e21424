"""Finds the code of a script that can run: a function that nothing names is not called.

Functions and methods are compared by name, across the script and the modules that it imports. In doubt a
function counts as called: one with a decorator, one whose class is named, one whose name is a string.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from samestep.launch.source.names import assigned

Module: TypeAlias = tuple[Path, ast.Module]
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_BY_NAME = ("globals", "Fire")  # calls that find functions of a module by names that are not in its text


@dataclass(eq=False, slots=True)
class _Unit:
    """Code that runs as a whole: the statements of a module, or the body of a function."""

    file: Path
    triggers: frozenset[str]  # names that call it; of a method, also that of its class
    nodes: list[ast.AST] = field(default_factory=list)


def reached_nodes(modules: Sequence[Module], *, main: Path) -> dict[Path, list[ast.AST]]:
    """Return the nodes of each module that can run, in no particular order.

    In other modules than the script, `main`, ``if __name__ == "__main__":`` is left out.
    """
    reached: dict[Path, list[ast.AST]] = {file: [] for file, _ in modules}
    aliases = _aliases(modules)
    waiting: list[_Unit] = []
    ready: list[_Unit] = []
    for file, tree in modules:
        units = _units(file, tree, is_main=file == main)
        ready.append(units[0])
        waiting += units[1:]
    named: set[str] = set()
    while ready:
        for unit in ready:
            reached[unit.file] += unit.nodes
            named |= _named(unit.nodes, aliases)
            if _calls_by_name(unit.nodes):
                named |= {name for other in waiting if other.file == unit.file for name in other.triggers}
        ready = [unit for unit in waiting if unit.triggers & named]
        waiting = [unit for unit in waiting if not unit.triggers & named]
    return reached


def _units(file: Path, tree: ast.Module, *, is_main: bool) -> list[_Unit]:
    """Return the module's statements, and then its functions."""
    units = [_Unit(file, frozenset())]
    body = [node for node in tree.body if not _is_export_list(node) and (is_main or not _is_main_guard(node))]
    waiting: list[tuple[ast.AST, _Unit, str]] = [(node, units[0], "") for node in body]
    while waiting:
        node, unit, owner = waiting.pop()
        unit.nodes.append(node)
        if isinstance(node, ast.ClassDef):
            inside = "" if node.decorator_list else node.name  # a decorator may register the class
            waiting += [(part, unit, inside) for part in node.body]
            waiting += [(part, unit, "") for part in (*node.bases, *node.keywords, *node.decorator_list)]
        elif isinstance(node, _Function) and _is_called_by_name(node):
            own = _Unit(file, frozenset({node.name, owner} - {""}))
            units.append(own)
            waiting += [(part, own, "") for part in node.body]
            waiting += [(part, unit, "") for part in (node.args, *node.decorator_list)]
        else:
            waiting += [(part, unit, "") for part in ast.iter_child_nodes(node)]
    return units


def _is_called_by_name(function: _Function) -> bool:
    """Return whether only its name can call a function: other decorators may register it."""
    plain = {"staticmethod", "classmethod", "property", "contextmanager", "no_grad", "wraps"}
    names = [_last_name(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list]
    return all(name in plain for name in names)


def _named(nodes: Iterable[ast.AST], aliases: dict[str, set[str]]) -> set[str]:
    names = set(_names(nodes))
    return names.union(*(aliases[name] for name in names if name in aliases))


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield _last_name(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            last = node.value.rpartition(".")[2]
            if last.isidentifier():
                yield last


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _calls_by_name(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(node, ast.Call) and _last_name(node.func) in _BY_NAME for node in nodes)


def _aliases(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Return the names of imported functions by the names that the importing module gives them."""
    aliases: dict[str, set[str]] = {}
    for _, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.asname:
                        aliases.setdefault(alias.asname, set()).add(alias.name)
    return aliases


def _is_export_list(node: ast.stmt) -> bool:
    """Return whether a statement sets ``__all__``, whose strings name functions without calling them."""
    return any(_last_name(target) == "__all__" for target, _ in assigned(node))


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )
