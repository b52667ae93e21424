"""The modules beside a script that it imports."""

import ast
from collections.abc import Iterator
from pathlib import Path


def neighbours(tree: ast.Module, file: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that `file` imports; installed packages are not followed.

    Args:
        tree: the parsed `file`.
        file: where it stands, for relative imports.
        root: where absolute imports are looked for.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = root if not node.level else file.parents[min(node.level, len(file.parents)) - 1]
            module = node.module or ""
            yield from _files(base, module)
            for alias in node.names:
                yield from _files(base, f"{module}.{alias.name}" if module else alias.name, only_last=True)


def _files(base: Path, name: str, *, only_last: bool = False) -> Iterator[Path]:
    """Yield the files of a dotted name below `base`: the packages on the way, and the module itself."""
    parts = [part for part in name.split(".") if part.isidentifier()]
    for depth in range(len(parts) if only_last else 1, len(parts) + 1):
        path = base.joinpath(*parts[:depth])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                yield candidate
                break
