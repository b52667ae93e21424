"""Runs the command line as a user does, in another process; finds remaining processes and segments."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from samestep.launchers.registry import RANK_VARIABLES

DEADLINE_S = 60.0

_LAUNCHERS = (
    *RANK_VARIABLES,
    "SLURM",
    "OMPI_",
    "PMI",
    "FLUX_",
    "OMP_NUM",
    "SAMESTEP_RUN",
    "SAMESTEP_THREADS",
)

# A shell starts its background jobs with these ignored, and they would be in all that a test starts.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without any launcher's variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    return plain | changes


def free_port() -> int:
    """Return a port of loopback on which no process listens."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


STACKS_SIGNAL = signal.SIGURG
"""Makes a command of `forked_commands` write the stacks of its threads to stderr; others ignore it."""


def start(*arguments: object, **changes: str) -> subprocess.Popen[str]:
    """Start ``samestep ARGUMENTS``; its output can be read line by line."""
    command = [sys.executable, "-m", "samestep", *map(str, arguments)]
    pipe = subprocess.PIPE
    # Tests under nohup ignore SIGHUP, those of a background job SIGINT, and what they start would too.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        # A session of its own: a signal meant for it cannot reach the tests.
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=environment(**changes), start_new_session=True
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish(process: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> Ended:
    """Wait for the end of a started command."""
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, STACKS_SIGNAL)
        time.sleep(1.0)  # until each has written its stacks
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {deadline_s:g} s\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def samestep(*arguments: object, **changes: str) -> Ended:
    """Run ``samestep ARGUMENTS`` to its end."""
    return finish(start(*arguments, **changes))


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next `count` lines that a started command prints."""
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def await_end_of(pids: Iterable[int], *, deadline_s: float = 15.0) -> list[int]:
    """Wait until none of the processes runs any more; return those that still do at the deadline."""
    end = time.monotonic() + deadline_s
    left = set(pids)
    while left and time.monotonic() < end:
        left = {pid for pid in left if _runs(pid)}
        time.sleep(0.02)
    return sorted(left)


def shared_memory() -> set[str]:
    """Return the names of the segments there are."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
