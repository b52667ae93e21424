"""Finds the accelerators of this machine; run as a program, it prints them as one JSON object."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from samestep.base.errors import UsageError
from samestep.ranks.world.device import device_name, driver_version, facts_here, toolkit_versions
from samestep.testing.gpu.context import environment, last_lines

OLDEST = (2, 6)
"""The oldest version of torch that is tested."""
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Accelerators of this machine by torch's name of their type, and the software below torch."""

    type: str = "cpu"
    label: str = "cpu"
    names: tuple[str, ...] = ()
    torch: str = str(torch.__version__)
    versions: Mapping[str, str]

    @property
    def count(self) -> int:
        """Number of accelerators."""
        return len(self.names)

    def describe(self) -> str:
        """Return the machine in one line."""
        below = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        what = " + ".join(self.names) if self.names else "no GPU"
        return f"{what}; {self.label}; torch {self.torch}{', ' * bool(below)}{below}"


def find(asked: str | None = None) -> Machine:
    """Return the accelerators that torch finds in this process, of the requested type."""
    facts = facts_here(asked)
    names = tuple(device_name(torch.device(facts.kind, index)) for index in range(facts.count))
    versions = toolkit_versions(facts.kind)
    if driver := driver_version(facts.kind):
        versions["driver"] = driver
    return Machine(type=facts.kind, label=facts.label, names=names, versions=versions)


def found(asked: str | None = None) -> Machine:
    """Return `find` of another process, so that this one opens no device and a driver that hangs ends.

    Raises:
        UsageError: the process failed, or did not end in time.
    """
    command = [sys.executable, "-m", __name__, *filter(None, [asked])]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S, env=environment()
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"torch did not list its devices within {_LIMIT_S:g} s: the driver hangs. Check it with "
            "`nvidia-smi`, `rocm-smi` or `xpu-smi`."
        ) from error
    if ended.returncode:
        reason = last_lines(ended.stderr, 1) or f"exit code {ended.returncode}"
        raise UsageError(f"torch could not list its devices: {reason}")
    values: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return Machine(**{**values, "names": tuple(values["names"])})


def check_version(version: str = str(torch.__version__)) -> None:
    """Refuse a version of torch that samestep does not support.

    Raises:
        UsageError: it is too old.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        raise UsageError(f"torch is {version}; install {'.'.join(map(str, OLDEST))} or later.")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(find(*sys.argv[1:]))) + "\n")
