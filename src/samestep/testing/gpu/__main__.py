"""Checks samestep on the GPUs of this machine: ``python -m samestep.testing.gpu``."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import can_have_accelerators
from samestep.testing.gpu.registry import Check, selected
from samestep.testing.gpu.runner import (
    Outcome,
    Request,
    as_json,
    exit_code,
    run_all,
    table_of_checks,
    table_of_outcomes,
    write,
)

if TYPE_CHECKING:
    from samestep.testing.gpu.devices import Machine

# Modules that import torch are imported where they are used: a Python without torch gets an answer too.
NO_GPU = 3
"""Exit code if nothing was tested, so that a job on a machine without its GPU does not pass."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m samestep.testing.gpu", description=__doc__)
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "xpu", "cpu"),
        default="auto",
        help="device type by torch's name (cuda is ROCm too); cpu runs the checks that need no GPU, which "
        "tests their code only",
    )
    parser.add_argument("--only", metavar="NAME,..", default="", help="run these checks only")
    parser.add_argument("--list", action="store_true", help="print the checks and end")
    parser.add_argument(
        "--share-gpu", action="store_true", help="allow two ranks on the one GPU that is here, over Gloo"
    )
    parser.add_argument("--json", metavar="FILE", default="samestep-gpu.json", help="file of the results")
    parser.add_argument("--time-limit", metavar="SECONDS", type=float, default=470.0, help="of all checks")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that the options select; return the exit code."""
    options = parsed(arguments)
    try:
        checks = selected(options.only)
        if options.list:
            write(table_of_checks(checks))
            return 0
        if find_spec("torch") is None:
            write(f"{sys.executable} has no torch; choose another Python: make gpu GPU_PYTHON=PATH.")
            return _nothing_here({"type": "", "torch": ""}, checks, Path(options.json))
        machine = _machine(options.device)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if not machine.count and options.device != "cpu":
        write(f"No GPU is here: torch {machine.torch} finds no device.")
        return _nothing_here(asdict(machine), checks, Path(options.json))
    return _run(machine, checks, options)


def _machine(asked: str) -> "Machine":
    """Return the requested devices; without a device file of any, no driver is called."""
    from samestep.testing.gpu.devices import check_version, find, found

    check_version()
    if asked == "cpu" or not can_have_accelerators():
        return find("cpu")
    return found(None if asked == "auto" else asked)


def _nothing_here(machine: Mapping[str, Any], checks: Sequence[Check], file: Path) -> int:
    write("Nothing was tested.")
    write(f"On a machine with GPUs these {len(checks)} checks run, each on as many GPUs as it needs:\n")
    write(table_of_checks(checks))
    outcomes = [Outcome(name=one.name, result="skipped", reason="no GPU is here") for one in checks]
    _save(file, machine, outcomes, NO_GPU)
    return NO_GPU


def _run(machine: "Machine", checks: Sequence[Check], options: argparse.Namespace) -> int:
    write(machine.describe())
    is_cpu = options.device == "cpu"
    if is_cpu:
        write("This tests the code of the checks on the CPU. It shows nothing about GPUs.")
    request = Request(
        type=machine.type,
        count=2 if is_cpu else machine.count,
        shares=options.share_gpu,
        limit_s=options.time_limit,
    )
    outcomes: list[Outcome] = []
    for one in run_all(checks, request):
        outcomes.append(one)
        write(f"  {one.result:8} {one.name} ({one.seconds:g} s)")
    code = exit_code(outcomes)
    write("\n" + table_of_outcomes(outcomes))
    _save(Path(options.json), asdict(machine), outcomes, code)
    return code


def _save(file: Path, machine: Mapping[str, Any], outcomes: Sequence[Outcome], code: int) -> None:
    """Write the results; a file that cannot be written is reported and changes no result."""
    values = {"format": 1, "machine": machine, "exit_code": code, "checks": as_json(outcomes)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values, indent=1) + "\n")
    except OSError as error:
        sys.stderr.write(f"error: {file} cannot be written: {error}\n")
    else:
        write(f"\nResults: {file}")


if __name__ == "__main__":
    sys.exit(main())
