"""Finds the source of a module without importing anything."""

import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from samestep.base.errors import UsageError

_INSTALLED = {"site-packages", "dist-packages"}


def source_of(name: str, path: Sequence[str]) -> Path | None:
    """Return the file that ``python -m name`` runs, or None if it has no Python source.

    Parent packages are not imported, as `importlib.util.find_spec` does: their code can have side effects.

    Args:
        name: dotted name of a module, or of a package with a ``__main__``.
        path: folders to search, as in `sys.path`.

    Raises:
        UsageError: the module does not exist.
    """
    top, *below = name.split(".")
    spec = PathFinder.find_spec(top, path) or _editable(top)
    full = top
    for part in below:
        full = f"{full}.{part}"
        folders = spec.submodule_search_locations if spec is not None else None
        spec = PathFinder.find_spec(full, folders) if folders else None
    if spec is not None and spec.submodule_search_locations:
        spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
        if spec is None:
            raise UsageError(f"-m {name}: the package {name} has no __main__; name a module of it.")
    if spec is None:
        raise UsageError(f"-m {name}: no such module in {path[0]} or among the installed packages.")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def user_folders(path: Iterable[str]) -> list[Path]:
    """Return the folders of a `sys.path` without the standard library and installed packages."""
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = [Path(entry) for entry in path if entry]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not _INSTALLED & set(folder.parts) and not library & {folder, *folder.parents}
    ]


def editable_folder(package: str) -> Path | None:
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
