"""Resolves the names in a module to full dotted names."""

import ast
from collections.abc import Iterable, Iterator

_MEANINGS = 8  # maximum number of bindings of one name; a name that is bound more often is not a launcher's


class Names:
    """The names that a module binds, with their full names.

    Resolves ``import a.b as c``, ``from a import b as c``, ``from a import *``, ``c = a.b`` and ``c = a.b()``
    anywhere in the module. A name that is bound twice has both meanings everywhere.

    >>> names = Names(ast.parse("import torch.distributed as dist"))
    >>> list(names.full(ast.parse("dist.barrier").body[0].value))
    ['torch.distributed.barrier']
    """

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, list[str]] = {}
        self._starred: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._import_from(node, node.module)
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
        for start in self._bound.get(node.id) or [f"{module}.{node.id}" for module in self._starred]:
            yield ".".join([start, *rest])

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
