"""Finds the source of modules, and the user's modules that a script imports, without importing anything."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from samestep.base.errors import UsageError

_INSTALLED = {"site-packages", "dist-packages"}
_DEEPEST = 64  # maximum depth of nested packages


def source_of(name: str, path: Sequence[str]) -> Path | None:
    """Return the file that ``python -m name`` runs, or None if it has no Python source.

    `path` has the folders to search, as `sys.path`.

    Parent packages are not imported, as `importlib.util.find_spec` does: their code can have side effects.

    Raises:
        UsageError: the module does not exist.
    """
    top, *below = name.split(".")
    spec = PathFinder.find_spec(top, path) or _editable(top)
    for part in below:
        folders = _folders_of(spec)
        spec = PathFinder.find_spec(part, folders) if folders else None
    if folders := _folders_of(spec):
        spec = PathFinder.find_spec("__main__", folders)
        if spec is None:
            raise UsageError(f"-m {name}: the package {name} has no __main__; name a module of it.")
    if spec is None:
        raise UsageError(f"-m {name}: no such module in {path[0]} or among the installed packages.")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _folders_of(package: ModuleSpec | None) -> list[str]:
    """Return the folders of a package; none of a module.

    Its spec is found by the last part of its name: by the whole name, that of a package without
    ``__init__.py`` needs its parent to be imported.
    """
    return [] if package is None else list(package.submodule_search_locations or ())


def is_safe_path() -> bool:
    """Return whether `sys.path` lacks the folder of the program that Python has started."""
    return bool(getattr(sys.flags, "safe_path", False))  # since Python 3.11


def user_folders(path: Iterable[str]) -> list[Path]:
    """Return the folders of a `sys.path` without the standard library and installed packages.

    Folders that ``pip install --target`` fills, and `PYTHONPATH` names, have installed packages too.
    """
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = [Path(entry) for entry in path if entry]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not has_packages(folder) and not library & {folder, *folder.parents}
    ]


def has_packages(folder: Path) -> bool:
    """Return whether packages are installed in a folder, by its name or by what pip writes beside each."""
    return bool(_INSTALLED & set(folder.parts)) or any(folder.glob("*.dist-info"))


def _editable_folder(package: str) -> Path | None:
    """Return the source folder of a package that is installed as editable, or None."""
    spec = _editable(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parents[1] if file.name == "__init__.py" else file.parent


def _editable(package: str) -> ModuleSpec | None:
    """Return the spec that an editable install's finder has for a package; no package is imported."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or finder in (BuiltinImporter, FrozenImporter, PathFinder):
            continue
        spec: ModuleSpec | None = find(package, None)
        if spec is not None:
            return spec
    return None


class ImportedModules:
    """The files that a program's modules import, without installed packages.

    Absolute imports are searched in `roots`, in order; `known` packages, which are recognized by name, in the
    first one only.
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
                    files = [*_files(base, module), *(path for name in names for path in _files(base, name))]
                    yield from dict.fromkeys(files)
                else:
                    yield from dict.fromkeys(path for name in names for path in self._absolute(name))

    def _absolute(self, name: str) -> list[Path]:
        top = name.partition(".")[0]
        roots = self._roots[:1] if top in self._known else self._roots
        for root in roots:
            if files := _files(root, name):
                return files
        return [] if top in self._known else self._from_editable(top, name)

    def _from_editable(self, top: str, name: str) -> list[Path]:
        if top not in self._editable:
            self._editable[top] = _editable_folder(top)
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
