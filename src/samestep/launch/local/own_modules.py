"""Lets a program import its own modules that have the name of a module that is loaded already."""

import sys
from contextlib import suppress
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

_KEPT = {"__main__", "__mp_main__", "numpy", "samestep", "torch"}
"""Names that stay loaded: samestep and torch load more modules of these while the program runs."""
_LOADED_AT_START = {"_sitebuiltins", "encodings", "genericpath", "os", "posixpath", "site", "stat"}
"""Modules that every interpreter loads before the program, and that are not frozen in each version."""


def unload_shadowed(folder: str) -> list[str]:
    """Remove the loaded modules that the modules of a program's folder hide, and return their names.

    A fresh interpreter finds ``secrets.py`` beside the program before that of the library. In a worker the
    library's is loaded. Code that has imported it keeps it.
    """
    with suppress(OSError):  # Python ignores a folder that it cannot read
        beside = {entry.name.partition(".")[0] for entry in Path(folder).iterdir()}
        hidden = sorted(name for name in beside & set(sys.modules) if _is_hidden(name, folder))
        for loaded in [one for one in sys.modules if one.partition(".")[0] in hidden]:
            del sys.modules[loaded]
        return hidden
    return []


def _is_hidden(name: str, folder: str) -> bool:
    """Return whether a fresh interpreter would find another module of this name in `folder`."""
    if name in _KEPT or name in _LOADED_AT_START:
        return False
    if any(finder.find_spec(name) is not None for finder in (BuiltinImporter, FrozenImporter)):
        return False
    found, loaded = PathFinder.find_spec(name, [folder]), getattr(sys.modules[name], "__file__", None)
    if found is None or found.origin is None:  # a folder without __init__.py comes after all others
        return False
    return loaded is None or Path(loaded).resolve() != Path(found.origin).resolve()
