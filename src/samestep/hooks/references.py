"""Replaces functions in every module that refers to them, for functions that libraries import by name.

A forked process that reads all names of all modules copies most of its memory, which takes longer than the
search. So the launcher searches before it forks; later searches are limited to modules that are new or grown.
"""

import glob
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

_Pairs: TypeAlias = dict[int, tuple[Any, Any]]
_PLAIN = ("posix", "_io", "importlib", "samestep", "_frozen_importlib", "_frozen_importlib_external")
"""Packages in which functions are not replaced: Python's import system, and samestep."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """A module's namespace, as it was when it was searched."""

    namespace: int
    length: int
    names: Sequence[str]  # the names that refer to one of the functions


_functions: dict[int, Any] = {}
_searched: dict[str, _Searched] = {}


def search(functions: Iterable[Any]) -> None:
    """Find all names that refer to `functions`, which `references_replaced` then does not have to search."""
    known = {id(function): function for function in functions}
    if not known.keys() <= _functions.keys():
        _functions.update(known)
        _searched.clear()
    for module, names in _namespaces():
        if module != "__main__" and not _is_known(module, names):
            found = [name for name, value in [*names.items()] if _functions.get(id(value)) is value]
            _searched[module] = _Searched(id(names), len(names), found)


@contextmanager
def references_replaced(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Replace functions in all modules for the duration of a block.

    Args:
        pairs: each function, and its replacement.
    """
    _replace_all({id(old): (old, new) for old, new in pairs})
    try:
        yield
    finally:
        _replace_all({id(new): (new, old) for old, new in pairs})


def _replace_all(pairs: _Pairs) -> None:
    are_searched = all(id(old) in _functions or id(new) in _functions for old, new in pairs.values())
    for module, names in _namespaces():
        is_known = are_searched and _is_known(module, names)
        _replace(names, pairs, _searched[module].names if is_known else [*names])
    openers = np.lib._datasource._file_openers._file_openers  # type: ignore[attr-defined]  # noqa: SLF001
    _replace(openers, pairs, [*openers])
    for holder in _holders_of_file_functions():
        for name, value in [*vars(holder).items()]:
            plain = value.__func__ if isinstance(value, staticmethod) else value
            if id(plain) in pairs and pairs[id(plain)][0] is plain:
                setattr(holder, name, staticmethod(pairs[id(plain)][1]))
    for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        for old, new in pairs.values():
            if old in group:
                cast("set[Any]", group).discard(old)
                cast("set[Any]", group).add(new)


def _holders_of_file_functions() -> list[type]:
    """Return the classes by which pathlib calls functions of `os`: those of Python 3.10, and of 3.13."""
    found = (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None))
    return [holder for holder in found if holder is not None]


def _namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the namespace of each module in which functions are replaced."""
    for module, loaded in [*sys.modules.items()]:
        if module.partition(".")[0] not in _PLAIN:
            names = getattr(loaded, "__dict__", None)
            if isinstance(names, dict):
                yield module, names


def _is_known(module: str, names: dict[str, Any]) -> bool:
    """Return whether a module has been searched, and has as many names as then."""
    found = _searched.get(module)
    return found is not None and found.namespace == id(names) and found.length == len(names)


def _replace(names: dict[Any, Any], pairs: _Pairs, candidates: Iterable[Any]) -> None:
    for name in candidates:
        value = names.get(name)
        found = pairs.get(id(value))
        if found is not None and found[0] is value:
            names[name] = found[1]
