"""Runs functions in forks of a process that has imported torch, each with its output in files.

An import of torch with CUDA takes 5 to 10 s if several processes start at once, a fork some milliseconds.
"""

import gc
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.launch.local.forking import forget_parent, fork, fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import leave

PRELOADED = (
    *("torch.distributed", "torch.nn.parallel", "torch.optim", "torch._dynamo"),
    *("samestep.cli.run", "samestep.cli.train", "samestep.cli.verify", "samestep.cli.doctor"),
    *("samestep.autopilot.once_script", "samestep.training.recipes.run_recipe"),
    *("samestep.parallel.gradients.replicate", "samestep.ranks.world.join"),
)
"""Modules that nearly every check imports."""
_POLL_S = 0.02


def preload() -> None:
    """Import `PRELOADED`, by which no device is opened: torch counts devices without the driver."""
    with env.exported({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}):
        for name in PRELOADED:
            import_module(name)
    gc.freeze()


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Fork:
    """A forked process.

    Args:
        pid: its process ID; with `leads`, also that of its process group.
        out: file of its output.
        err: file of its errors.
        leads: whether its process group is its own.
    """

    pid: int
    out: Path
    err: Path
    leads: bool

    def wait(self, seconds: float | None = None) -> Ended | None:
        """Return the ended process, with its whole group ended too; None if `seconds` pass before."""
        deadline = None if seconds is None else time.monotonic() + seconds
        flags = os.WEXITED | os.WNOWAIT | (0 if deadline is None else os.WNOHANG)
        while os.waitid(os.P_PID, self.pid, flags) is None:
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        return self._reaped()

    def kill(self) -> Ended:
        """End the process, and its group if it leads one."""
        os.kill(self.pid, signal.SIGKILL)
        return self._reaped()

    def _reaped(self) -> Ended:
        if self.leads:  # before the process ID is free for another group
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return Ended(code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace"))


def start(
    function: Callable[[], object],
    log: Path,
    *,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    leads: bool = False,
) -> Fork:
    """Call `function` in a fork of this process.

    Args:
        function: called once; what it raises is printed, and ends the process with 1 or the code of its exit.
        log: path without suffix of the files of output (``.out``) and errors (``.err``).
        folder: working folder of the process.
        variables: variables that it has besides those of this process.
        leads: whether the process leads a process group, which ends with it.

    Raises:
        UsageError: this process cannot be forked.
    """
    if not (fork_is_safe() and release_compute_threads()):
        raise UsageError("no process can be forked: this one has opened a device, or has several threads.")
    out, err = Path(f"{log}.out"), Path(f"{log}.err")
    out.touch()
    err.touch()
    pid = fork()
    if pid == 0:
        _run(function, (out, err), folder, variables or {}, leads=leads)
    return Fork(pid, out, err, leads)


def _run(
    function: Callable[[], object],
    files: Sequence[Path],
    folder: Path,
    variables: Mapping[str, str],
    *,
    leads: bool,
) -> NoReturn:
    code = 1
    try:
        if leads:
            os.setsid()
        forget_parent()
        for number, file in enumerate([Path(os.devnull), *files]):
            fd = os.open(file, os.O_RDWR | os.O_APPEND)
            os.dup2(fd, number)
            os.close(fd)
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        env.export(variables)
        function()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    leave(code)


def of_script(arguments: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs ``python ARGUMENTS``, of which the first is a script."""
    return partial(_script, list(arguments))


def _script(arguments: list[str]) -> None:
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


def of_command(arguments: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs ``samestep ARGUMENTS``."""
    return partial(_command, list(arguments))


def _command(arguments: list[str]) -> None:
    from samestep.cli.main import main

    sys.argv = ["samestep", *arguments]
    main()
