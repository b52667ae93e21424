"""Defines what a check is given and what it returns, and runs commands of samestep for it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from unittest import SkipTest

import samestep
from samestep.base import env
from samestep.base.folders import absolute

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide all accelerators from a process if they are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The device of a check, and its folder."""

    device: "torch.device"  # the first accelerator; the CPU if the code of the checks is tested without one
    count: int  # number of accelerators; 2 for the CPU, which two ranks can use
    shares: bool  # whether two ranks use one accelerator over Gloo
    folder: Path  # an empty folder
    seconds: float  # time limit of the whole check

    @property
    def is_cpu(self) -> bool:
        """Whether the check runs without an accelerator."""
        return self.device.type == "cpu"


Figures: TypeAlias = Mapping[str, Any]
"""Values that a check measured, by name; plain values."""
Function: TypeAlias = Callable[[Context], Figures]


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def succeeded(self) -> "Ended":
        """Return this command; raise if it failed."""
        text = self.err or self.out
        require(self.code == 0, f"exit code {self.code}: {last_lines(text, 1)}\n{last_lines(text)}")
        return self


def require(condition: object, text: str) -> None:
    """Raise an error with `text` unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def skip_without_triton() -> None:
    """Skip the check if torch cannot compile for GPUs here."""
    if find_spec("triton") is None:
        raise SkipTest("triton is not installed, which torch.compile needs on GPUs")


def close(found: Sequence[float], expected: Sequence[float], tolerance: float, name: str) -> float:
    """Return the largest relative difference of two sequences; raise if it exceeds the tolerance."""
    require(len(found) == len(expected) > 0, f"{name}: {len(found)} values, expected {len(expected)}")
    differences = [abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, expected, strict=True)]
    largest = max(differences)
    require(
        largest <= tolerance, f"{name}: relative difference {largest:.3g}, at most {tolerance:g} expected"
    )
    return largest


def last_lines(text: str, count: int = 12) -> str:
    """Return the end of an output."""
    return "\n".join(text.strip().splitlines()[-count:])


def environment(*, on_cpu: bool = False) -> dict[str, str]:
    """Return the variables of a command; with `on_cpu` it sees no accelerator."""
    source = str(Path(samestep.__file__).parents[1])  # a source tree need not be installed
    inherited = env.snapshot()
    # Commands run in the folder of a check, where a relative path would lead elsewhere.
    path = [source, *(str(absolute(one)) for one in inherited.get("PYTHONPATH", "").split(":") if one)]
    return {**inherited, "PYTHONPATH": ":".join(path), **(dict.fromkeys(HIDING, "") if on_cpu else {})}


def python(context: Context, *arguments: object, on_cpu: bool = False) -> Ended:
    """Run Python with these arguments in the folder of the check."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=context.folder,
        env=environment(on_cpu=on_cpu),
        capture_output=True,
        text=True,
        check=False,
        timeout=context.seconds,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def command(context: Context, *arguments: object, on_cpu: bool = False) -> Ended:
    """Run a command of samestep in the folder of the check."""
    return python(context, "-m", "samestep", *arguments, on_cpu=on_cpu)


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Run calls that wait for commands at the same time; return their results in order."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [running.result() for running in [pool.submit(call) for call in calls]]


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    return [json.loads(line) for line in file.read_text().splitlines()]
