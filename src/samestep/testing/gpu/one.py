"""Runs one check in this process, and writes its outcome to a file: ``one.py NAME REQUEST OUTCOME``."""

import json
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch

from samestep.testing.gpu.context import Context, Function
from samestep.testing.gpu.registry import by_name


def function_of(name: str) -> Function:
    """Return the function of a check."""
    module, attribute, *words = by_name(name).function.split(":")
    function = getattr(import_module(f"samestep.testing.gpu.{module}"), attribute)
    return lambda context: function(context, *words)


def outcome(name: str, context: Context) -> dict[str, Any]:
    """Run a check; return its result, its figures and the reason of a failure or of a skip."""
    began = time.monotonic()
    result: dict[str, Any]
    try:
        result = {"result": "ok", "figures": dict(function_of(name)(context))}
    except SkipTest as reason:
        result = {"result": "skipped", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001 - any error of a check is its failure
        result = {"result": "failed", "reason": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    return {**result, "seconds": round(time.monotonic() - began, 2)}


def main(name: str, request: str, file: str) -> None:
    """Run the check that `request` describes, as JSON."""
    values = json.loads(request)
    device, folder = torch.device(values.pop("device")), Path(values.pop("folder"))
    result = outcome(name, Context(device=device, folder=folder, **values))
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
