"""Where a module's source is, found without importing anything."""

import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from samestep.base.errors import UsageError

_INSTALLED = {"site-packages", "dist-packages"}


def source_of(name: str, path: Sequence[str]) -> Path | None:
    """Return the file that ``python -m name`` runs, or None if it has no Python source.

    Packages on the way are not imported, as `importlib.util.find_spec` would: their code is the user's
    and may do anything.

    Args:
        name: dotted name of a module, or of a package that has a ``__main__``.
        path: folders to look in, as `sys.path`.

    Raises:
        UsageError: there is no such module.
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
            raise UsageError(f"-m {name}: {name} is a package without a __main__ and cannot be run.")
    if spec is None:
        raise UsageError(f"-m {name}: there is no such module in {path[0]} nor among the installed ones.")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def own_folders(path: Iterable[str]) -> list[Path]:
    """Return the folders of a `sys.path` that hold a user's own code: not the library, nothing installed."""
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = [Path(entry) for entry in path if entry]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not _INSTALLED & set(folder.parts) and not library & {folder, *folder.parents}
    ]


def editable_folder(package: str) -> Path | None:
    """Return the folder in which an editable install keeps a package of the user's, or None."""
    spec = _editable(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parents[1] if file.name == "__init__.py" else file.parent


def _editable(package: str) -> ModuleSpec | None:
    """Ask the finders that editable installs add beside Python's own; none of them imports a top package."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or finder in (BuiltinImporter, FrozenImporter, PathFinder):
            continue
        spec: ModuleSpec | None = find(package, None)
        if spec is not None:
            return spec
    return None
