"""Resolves the names in a module to full dotted names, and finds the code of a script that can run.

A function that nothing names is not called. Functions and methods are compared by name, across the script and
the modules that it imports. In doubt a function counts as called: one with a decorator, one whose class is
named, one whose name is a string.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

_MEANINGS = 8  # maximum number of bindings of one name; a name that is bound more often is not a launcher's
_MOST_NAMES = 64  # maximum number of names of one expression, in the modules that import it from each other


class Names:
    """The names that a module binds, with their full names.

    Resolves ``import a.b as c``, ``from a import b as c``, ``from a import *``, ``c = a.b`` and ``c = a.b()``
    anywhere in the module. A name that is bound twice has both meanings everywhere.

    >>> names = Names(ast.parse("import torch.distributed as dist"))
    >>> list(names.full(ast.parse("dist.barrier").body[0].value))
    ['torch.distributed.barrier']
    """

    def __init__(self, tree: ast.Module, modules: "Mapping[str, Sequence[Names]] | None" = None) -> None:
        self._bound: dict[str, list[str]] = {}
        self._starred: list[str] = []
        self._modules = {} if modules is None else modules  # filled later, when there are all
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._import_from(node, node.module)
            elif isinstance(node, ast.ImportFrom) and modules is not None:
                self._import_from(node, f".{node.module}" if node.module else "")
        for node in ast.walk(tree):
            for target, value in assigned(node):
                if isinstance(target, ast.Name):
                    for name in list(self.full(value)):
                        self._bind(target.id, name)

    def full(self, node: ast.expr) -> Iterator[str]:
        """Yield the possible full names of a dotted expression; none for any other expression.

        The result of a call has the name of the called function.
        """
        parts: list[str] = []
        while isinstance(node, (ast.Attribute, ast.Call)):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
            node = node.value if isinstance(node, ast.Attribute) else node.func
        if not isinstance(node, ast.Name):
            return
        rest = [*reversed(parts)]
        names = [".".join([start, *rest]) for start in self.starts(node.id)]
        for name in names:
            yield name
            names += [further for further in self._imported(name) if further not in names]
            if len(names) > _MOST_NAMES:
                return

    def starts(self, name: str) -> list[str]:
        """Return the full names of a name of this module."""
        return self._bound.get(name) or [f"{module}.{name}" for module in self._starred]

    def _imported(self, name: str) -> Iterator[str]:
        """Yield what a full name is in the user's modules that it is imported from: they import it too."""
        parts = name.split(".")
        for at, part in enumerate(parts[1:], 1):
            for module in self._modules.get(parts[at - 1], ()):
                yield from (".".join([start, *parts[at + 1 :]]) for start in module.starts(part))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self._bind(alias.asname or first, alias.name if alias.asname else first)

    def _import_from(self, node: ast.ImportFrom, module: str) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._starred.append(module)
            else:
                self._bind(alias.asname or alias.name, f"{module}.{alias.name}")

    def _bind(self, target: str, name: str) -> None:
        known = self._bound.setdefault(target, [])
        if name not in known and len(known) < _MEANINGS:
            known.append(name)


def names_of(modules: Iterable["Module"]) -> "dict[Path, Names]":
    """Return the names in each of a script's modules, which may import them from each other.

    Modules are compared by the last part of their names: several can be meant.
    """
    by_name: dict[str, list[Names]] = {}
    names = {file: Names(tree, by_name) for file, tree in modules}
    for file, of_file in names.items():
        last = file.parent.name if file.name == "__init__.py" else file.stem
        by_name.setdefault(last, []).append(of_file)
    return names


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment of any form with its value; none for another node."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value


def used_names(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[str, int]]:
    """Yield the full name and the line of each called function, decorator and base class, in order."""
    uses: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.Call):
            uses.append(node.func)
        elif isinstance(node, ast.ClassDef):
            uses += [*node.bases, *node.decorator_list]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            uses += node.decorator_list
    for use in sorted(uses, key=lambda use: (use.lineno, use.col_offset)):
        for name in names.full(use):
            yield name, use.lineno


def is_one_of(name: str, table: tuple[str, ...]) -> bool:
    """Return whether a full name equals an entry of a table, or is below one."""
    return any(name == entry or name.startswith(f"{entry}.") for entry in table)


def prefixed(package: str, *names: str) -> tuple[str, ...]:
    """Return the full names of a package's names."""
    return tuple(f"{package}.{name}" for name in names)


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
                of_file = (pending for pending in waiting if pending.file == unit.file)
                named |= {name for pending in of_file for name in pending.triggers}
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
            function_unit = _Unit(file, frozenset({node.name, owner} - {""}))
            units.append(function_unit)
            waiting += [(part, function_unit, "") for part in node.body]
            waiting += [(part, unit, "") for part in (node.args, *node.decorator_list)]
        else:
            waiting += [(part, unit, "") for part in ast.iter_child_nodes(node)]
    return units


def _is_called_by_name(function: _Function) -> bool:
    """Return whether only its name can call a function: other decorators may register it."""
    plain = {"staticmethod", "classmethod", "property", "contextmanager", "no_grad", "wraps"}
    decorators = (
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in function.decorator_list
    )
    return all(_last_name(decorator) in plain for decorator in decorators)


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
