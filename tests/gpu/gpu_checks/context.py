"""Defines what a check is given and what it returns, and runs commands of samestep for it."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import SkipTest

import samestep
from gpu_checks import forks, shared_gpu
from gpu_checks.forks import Ended, Fork
from samestep.base import env
from samestep.base.folders import absolute

if TYPE_CHECKING:
    import torch

HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide all accelerators from a process if they are empty."""
_NUMBERS = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The device of a check, and its folder."""

    device: "torch.device"  # the first accelerator; the CPU if the code of the checks is tested without one
    count: int  # number of accelerators; 2 for the CPU, which two ranks can use
    shares: bool  # whether two ranks use one accelerator over NCCL
    folder: Path  # an empty folder

    @property
    def is_cpu(self) -> bool:
        """Whether the check runs without an accelerator."""
        return self.device.type == "cpu"

    @property
    def ranks(self) -> int:
        """Number of ranks that its devices allow, at most 2."""
        return 2 if self.count > 1 or self.shares else 1


Figures: TypeAlias = Mapping[str, Any]
"""Values that a check measured, by name; plain values."""
Function: TypeAlias = Callable[[Context], Figures]


def require(condition: object, text: str) -> None:
    """Raise an error with `text` unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def succeeded(started: Fork) -> Ended:
    """Return a started process that has ended; raise if it failed."""
    ended = wait(started)
    text = ended.err or ended.out
    require(ended.code == 0, f"exit code {ended.code}: {last_lines(text, 1)}\n{last_lines(text)}")
    return ended


def wait(started: Fork) -> Ended:
    """Return a started process at its end, for which the time limit of the check holds."""
    ended = started.wait()
    assert ended is not None
    return ended


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
    """Return variables of a process; with `on_cpu` it sees no accelerator."""
    # A source tree need not be installed, and the checks never are.
    own = [str(Path(package).parents[1]) for package in (samestep.__file__, __file__)]
    # Commands run in the folder of a check, where a relative path would lead elsewhere.
    inherited = [str(absolute(path)) for path in env.snapshot().get("PYTHONPATH", "").split(":") if path]
    hidden = dict.fromkeys(HIDING, "") if on_cpu else {}
    return {"PYTHONPATH": ":".join([*own, *inherited]), **hidden}


def user_script(context: Context, path: Path) -> Path:
    """Copy a script to the folder of the check, as files of samestep are not user code; return its path."""
    return Path(shutil.copy(path, context.folder))


def python(context: Context, *arguments: object) -> Fork:
    """Start a script with its arguments in the folder of the check."""
    return _started(context, forks.of_script([*map(str, arguments)]))


def command(context: Context, *arguments: object, on_cpu: bool = False, shares: bool | None = None) -> Fork:
    """Start a command of samestep in the folder of the check.

    `shares` is whether its workers may share a GPU; None for what the check allows.
    """
    run = forks.of_command([*map(str, arguments)])

    def shared() -> None:
        shared_gpu.allow()
        run()

    return _started(context, shared if (context.shares if shares is None else shares) else run, on_cpu=on_cpu)


def _started(context: Context, run: Callable[[], object], *, on_cpu: bool = False) -> Fork:
    log = context.folder.with_name(f"command-{next(_NUMBERS)}")
    return forks.start(run, log, folder=context.folder, variables=environment(on_cpu=on_cpu))


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    return [json.loads(line) for line in file.read_text().splitlines()]
