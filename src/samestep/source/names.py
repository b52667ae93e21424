"""Full names of what a module calls, whatever it calls them by."""

import ast
from collections.abc import Iterator


class Names:
    """What the names in one module stand for.

    Follows ``import a.b as c``, ``from a import b as c``, ``from a import *`` and ``c = a.b``, wherever
    they stand; a name that is bound twice stands for the last one.

    >>> names = Names(ast.parse("import torch.distributed as dist"))
    >>> list(names.full(ast.parse("dist.barrier").body[0].value))
    ['torch.distributed.barrier']
    """

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, str] = {}
        self._starred: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._import_from(node, node.module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._assign(node.targets[0].id, node.value)

    def full(self, node: ast.expr) -> Iterator[str]:
        """Yield the full names that a dotted expression may have; none for any other expression."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return
        rest = [*reversed(parts)]
        if node.id in self._bound:
            yield ".".join([self._bound[node.id], *rest])
        else:
            for module in self._starred:
                yield ".".join([module, node.id, *rest])

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self._bound[alias.asname or first] = alias.name if alias.asname else first

    def _import_from(self, node: ast.ImportFrom, module: str) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._starred.append(module)
            else:
                self._bound[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _assign(self, target: str, value: ast.expr) -> None:
        for name in self.full(value):
            self._bound[target] = name


def called_names(tree: ast.Module, names: Names, *, is_main: bool) -> Iterator[tuple[str, int]]:
    """Yield the full name and the line of each call, in the order of the text.

    Args:
        tree: the module.
        names: what its names stand for.
        is_main: whether it runs as ``__main__``; if not, its ``if __name__ == "__main__":`` does not run.
    """
    body = [node for node in tree.body if is_main or not _is_main_guard(node)]
    calls = [node for top in body for node in ast.walk(top) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        for name in names.full(call.func):
            yield name, call.lineno


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )
