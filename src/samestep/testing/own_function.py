"""Loads a function from a user's file."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from samestep.base.errors import UsageError


def load_module(path: Path) -> ModuleType:
    """Run a user's file as a module of its stem, and return it; its main guard does not apply.

    Raises:
        UsageError: there is no such file, or running it failed.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a file of Python (.py); give another name.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as if Python ran the file
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's file raises
        own = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
        line = own[-1] if own else getattr(error, "lineno", None)
        at = f":{line}" if line else ""
        raise UsageError(f"{path}{at} fails on import: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(path.parent))
    return module


def load_function(text: str) -> Callable[..., Any]:
    """Return the function that ``FILE:FUNCTION`` names.

    Raises:
        UsageError: there is no such file or function, or running the file failed.
    """
    file, _, name = text.rpartition(":")
    if not file:
        raise UsageError(
            f"{text!r} names no function of a file; give FILE:FUNCTION, such as ring.py:all_reduce."
        )
    function = getattr(load_module(Path(file)), name, None)
    if not callable(function):
        raise UsageError(f"{file} has no function {name!r}; give the name of one that it defines.")
    return function  # type: ignore[no-any-return]
