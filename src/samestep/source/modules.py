"""Where a module's source is, found without importing anything."""

from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from samestep.base.errors import UsageError


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
    spec: ModuleSpec | None = None
    folders: Sequence[str] | None = path
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), folders) if folders else None
        folders = spec.submodule_search_locations if spec is not None else None
    if spec is not None and folders:
        spec = PathFinder.find_spec(f"{name}.__main__", folders)
        if spec is None:
            raise UsageError(f"-m {name}: {name} is a package without a __main__ and cannot be run.")
    if spec is None:
        raise UsageError(f"-m {name}: there is no such module in {path[0]} nor among the installed ones.")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
