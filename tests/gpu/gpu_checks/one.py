"""Runs one check in this process, and writes its outcome to a file."""

import json
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import SkipTest

from gpu_checks.context import Context, Function
from gpu_checks.registry import by_name


def function_of(name: str) -> Function:
    """Return the function of a check."""
    module, attribute, *words = by_name(name).function.split(":")
    function = getattr(import_module(f"gpu_checks.{module}"), attribute)
    return lambda context: function(context, *words)


def outcome(name: str, context: Context) -> dict[str, Any]:
    """Run a check; return its result, its figures and the reason of a failure or of a skip."""
    try:
        return {"result": "ok", "figures": dict(function_of(name)(context))}
    except SkipTest as reason:
        return {"result": "skipped", "reason": str(reason)}
    except Exception as error:
        traceback.print_exc()
        return {"result": "failed", "reason": f"{type(error).__name__}: {error}"}


def write_outcome(name: str, context: Context, file: Path) -> None:
    """Run a check, and write its outcome as JSON."""
    file.write_text(json.dumps(outcome(name, context)))
