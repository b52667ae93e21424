"""Finds the user's modules that a script imports."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from samestep.launch.source.modules import editable_folder

_DEEPEST = 64
"""Maximum depth of nested packages."""


class ImportedModules:
    """The files that a program's modules import, without installed packages.

    Args:
        roots: folders in which absolute imports are searched; the first one with the module counts.
        known: packages that are recognized by name, and searched in the first root only.
    """

    def __init__(self, roots: Sequence[Path], known: frozenset[str]) -> None:
        self._roots = roots
        self._known = known
        self._editable: dict[str, Path | None] = {}

    def of(self, tree: ast.Module, file: Path) -> Iterator[Path]:
        """Yield the files that `file`, parsed as `tree`, imports."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._absolute(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
                if node.level:
                    base = file.parents[min(node.level, len(file.parents)) - 1]
                    found = [*_files(base, module), *(one for name in names for one in _files(base, name))]
                    yield from dict.fromkeys(found)
                else:
                    yield from dict.fromkeys(one for name in names for one in self._absolute(name))

    def _absolute(self, name: str) -> list[Path]:
        top = name.partition(".")[0]
        roots = self._roots[:1] if top in self._known else self._roots
        for root in roots:
            if files := _files(root, name):
                return files
        return [] if top in self._known else self._from_editable(top, name)

    def _from_editable(self, top: str, name: str) -> list[Path]:
        if top not in self._editable:
            self._editable[top] = editable_folder(top)
        folder = self._editable[top]
        return [] if folder is None else _files(folder, name)


def _files(base: Path, name: str) -> list[Path]:
    """Return the files of a dotted name below `base`: its parent packages and the module itself."""
    parts = [part for part in name.split(".", _DEEPEST)[:_DEEPEST] if part.isidentifier()]
    files = []
    for depth in range(1, len(parts) + 1):
        path = base.joinpath(*parts[:depth])
        candidates = (path.with_suffix(".py"), path / "__init__.py")
        files += [candidate for candidate in candidates if candidate.is_file()][:1]
    return files
