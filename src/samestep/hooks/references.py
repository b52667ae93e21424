"""Replaces functions in every module that refers to them, for functions that libraries import by name."""

import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import numpy as np

_Pairs: TypeAlias = dict[int, tuple[Any, Any]]
_PLAIN = ("posix", "_io", "importlib", "samestep", "_frozen_importlib", "_frozen_importlib_external")
"""Packages in which functions are not replaced: Python's import system, and samestep."""


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
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in _PLAIN and isinstance(getattr(module, "__dict__", None), dict):
            _replace(module.__dict__, pairs)
    openers = np.lib._datasource._file_openers._file_openers  # type: ignore[attr-defined]  # noqa: SLF001
    _replace(openers, pairs)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10
    if accessor is not None:
        for name, value in [*vars(accessor).items()]:
            plain = value.__func__ if isinstance(value, staticmethod) else value
            if id(plain) in pairs and pairs[id(plain)][0] is plain:
                setattr(accessor, name, staticmethod(pairs[id(plain)][1]))
    for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        for old, new in pairs.values():
            if old in group:
                cast("set[Any]", group).discard(old)
                cast("set[Any]", group).add(new)


def _replace(names: dict[Any, Any], pairs: _Pairs) -> None:
    for name, value in [*names.items()]:
        found = pairs.get(id(value))
        if found is not None and found[0] is value:
            names[name] = found[1]
