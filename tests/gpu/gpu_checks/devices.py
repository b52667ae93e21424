"""Finds the accelerators of this machine."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_checks import forks
from gpu_checks.context import last_lines
from samestep.base.errors import UsageError
from samestep.ranks.world.device import device_name, driver_version, facts_here, toolkit_versions

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
    with tempfile.TemporaryDirectory(prefix="samestep-gpu-") as folder:
        search = forks.start(
            lambda: sys.stdout.write(json.dumps(asdict(find(asked))) + "\n"),
            Path(folder, "devices"),
            folder=Path(folder),
            leads=True,
        )
        ended = search.wait(_LIMIT_S)
        if ended is None:
            search.kill()
            raise UsageError(
                f"torch did not list its devices within {_LIMIT_S:g} s: the driver hangs. Check it with "
                "`nvidia-smi`, `rocm-smi` or `xpu-smi`."
            )
    if ended.code:
        reason = last_lines(ended.err, 1) or f"exit code {ended.code}"
        raise UsageError(f"torch could not list its devices: {reason}")
    values: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
    return Machine(**{**values, "names": tuple(values["names"])})


def check_version(version: str = str(torch.__version__)) -> None:
    """Refuse a version of torch that samestep does not support.

    Raises:
        UsageError: it is too old.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        raise UsageError(f"torch is {version}; install {'.'.join(map(str, OLDEST))} or later.")
