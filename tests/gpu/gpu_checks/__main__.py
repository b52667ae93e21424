"""Checks samestep on the GPUs of this machine: ``python -m gpu_checks``."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_checks.dependencies import missing

if TYPE_CHECKING:
    from gpu_checks.devices import Machine
    from gpu_checks.registry import Check
    from gpu_checks.runner import Outcome

# Other modules are imported where they are used: missing packages are reported first, and at once.
NO_GPU = 3
"""Exit code if nothing was tested, so that a job on a machine without its GPU does not pass."""
LIMIT_S = 240.0
"""Time limit of all checks on GPUs."""
CPU_LIMIT_S = 1800.0
"""Time limit of all checks on the CPU."""
_CORES = 2
"""CPU cores for each check that runs at the same time as others; its processes often wait for the GPU."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m gpu_checks", description=__doc__)
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
        "--share-gpu", action="store_true", help="allow two ranks on the one GPU that is here, over NCCL"
    )
    parser.add_argument("--json", metavar="FILE", default="samestep-gpu.json", help="file of the results")
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        help=f"of all checks; {LIMIT_S:g}, or {CPU_LIMIT_S:g} with --device cpu",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that the options select; return the exit code."""
    options = parsed(arguments)
    if lacking := missing():
        sys.stderr.write(
            f"error: {sys.executable} lacks {', '.join(lacking)}; install what is missing, choose another "
            "Python (make gpu GPU_PYTHON=PATH), or take the packages along with `make gpu-bundle`.\n"
        )
        return 2
    from gpu_checks.ledger import ordered, read
    from gpu_checks.registry import selected
    from gpu_checks.tables import table_of_checks, write
    from samestep.base.errors import UsageError

    try:
        checks = ordered(selected(options.only), read())
        if options.list:
            write(table_of_checks(checks))
            return 0
        machine = _machine(options.device)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if not machine.count and options.device != "cpu":
        return _nothing_here(machine, checks, Path(options.json))
    return _run(machine, checks, options)


def _machine(asked: str) -> "Machine":
    """Return the requested devices; without a device file of any, no driver is called."""
    from gpu_checks.devices import find, found
    from samestep.base.machine.accelerators import can_have_accelerators

    if asked == "cpu" or not can_have_accelerators():
        return find("cpu")
    return found(None if asked == "auto" else asked)


def _nothing_here(machine: "Machine", checks: Sequence["Check"], file: Path) -> int:
    from gpu_checks.runner import Outcome
    from gpu_checks.tables import table_of_checks, write

    write(f"No GPU is here: torch {machine.torch} finds no device.")
    write("Nothing was tested.")
    write(f"On a machine with GPUs these {len(checks)} checks run, each on as many GPUs as it needs:\n")
    write(table_of_checks(checks))
    outcomes = [Outcome(name=one.name, result="skipped", reason="no GPU is here") for one in checks]
    _save(file, asdict(machine), outcomes, NO_GPU)
    return NO_GPU


def _run(machine: "Machine", checks: Sequence["Check"], options: argparse.Namespace) -> int:
    from gpu_checks import forks
    from gpu_checks.runner import Request, exit_code, run_all
    from gpu_checks.tables import table_of_outcomes, write
    from samestep.base.machine.description import cpu_share

    write(machine.describe())
    is_cpu = options.device == "cpu"
    if is_cpu:
        write("This tests the code of the checks on the CPU. It shows nothing about GPUs.")
    forks.preload()
    request = Request(
        type=machine.type,
        count=2 if is_cpu else machine.count,
        shares=options.share_gpu,
        limit_s=options.time_limit or (CPU_LIMIT_S if is_cpu else LIMIT_S),
        width=max(1, cpu_share().usable // _CORES),
    )
    outcomes: list[Outcome] = []
    for one in run_all(checks, request):
        outcomes.append(one)
        write(f"  {one.result:8} {one.name} ({one.seconds:g} s)")
    code = exit_code(outcomes)
    write("\n" + table_of_outcomes(outcomes))
    _save(Path(options.json), asdict(machine), outcomes, code)
    return code


def _save(file: Path, machine: Mapping[str, Any], outcomes: Sequence["Outcome"], code: int) -> None:
    """Write the results; a file that cannot be written is reported and changes no result."""
    from gpu_checks.tables import write

    values = {
        "format": 1,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": _commit(),
        "machine": machine,
        "exit_code": code,
        "checks": [asdict(one) for one in outcomes],
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values, indent=1) + "\n")
    except OSError as error:
        sys.stderr.write(f"error: {file} cannot be written: {error}\n")
    else:
        write(f"\nResults: {file}")


def _commit() -> str:
    """Return the commit of this source tree, or of the one from which this bundle was made; maybe empty."""
    root = Path(__file__).parents[3]
    if (written := root / "commit").exists():
        return written.read_text().strip()
    if not (root / ".git").exists():  # an installed package
        return ""
    command = ("git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        return ""


if __name__ == "__main__":
    sys.exit(main())
