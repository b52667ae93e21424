"""Writes the steps of one worker to ``rank-R.jsonl``, one JSON object per line.

===========  ==========================================================================
first line   header: rank, launcher, device, threads, versions
next lines   one step each: start time, seconds, samples, seconds of each phase
last line    end of the run: ``ended``, peak memory, samples per epoch
===========  ==========================================================================
"""

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from samestep.base import env
from samestep.base.errors import Error, UsageError
from samestep.base.machine.description import machine
from samestep.base.place import Place
from samestep.base.record import printable
from samestep.base.units import ranges
from samestep.ranks.world.device import (
    device_id,
    device_name,
    driver_version,
    peak_device_bytes,
    toolkit_versions,
)

if TYPE_CHECKING:
    import torch

FORMAT = 1  # version of the format
ENDED = '{"ended": '
"""Beginning of the last line, and of no other line."""

Kind: TypeAlias = Literal["serial", "once", "native", "recipe"]

Config: TypeAlias = Mapping[str, Any]

# The script's calls of os.open are redirected to its scratch folder; clock files are not.
_open = os.open


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOptions:
    """The options of a step clock."""

    folder: Path  # folder of the files of all workers
    steps: int | None = None  # number of recorded steps after which the run is stopped; None for no limit
    warm_up: int = 5  # number of steps before the first recorded one

    def file_of(self, rank: int) -> Path:
        """Return the file of a worker."""
        return self.folder / f"rank-{rank}.jsonl"

    def refuse_used(self) -> None:
        """Reject a folder with files of another run, before any worker starts.

        Raises:
            UsageError: the folder holds such files.
        """
        there = next(self.folder.glob("rank-*.jsonl"), None)
        if there is not None:
            raise _used(self.folder, there.name)

    def stopped_message(self) -> str:
        """Return the message about a run that was stopped after its last recorded step."""
        return (
            f"stopped after {self.steps} clocked steps (--clock-steps). They are in {self.folder}, for "
            "samestep report --scaling."
        )


class ClockFile:
    """The clock file of one worker; it is overwritten if the workers were restarted after a failure.

    Raises:
        UsageError: the file exists already, or cannot be created.
    """

    def __init__(
        self, clocking: ClockOptions, place: Place, kind: Kind, *, config: Config | None = None
    ) -> None:
        self._clocking, self._place, self._kind, self._config = clocking, place, kind, config
        self.path = clocking.file_of(place.rank).absolute()
        # Read here because it takes 10 to 30 ms, which would otherwise count as part of a step.
        self._machine = machine()
        self._threads = _own_threads(kind)
        self._header_bytes = 0
        self._failure = ""
        again = env.integer(env.snapshot(), "TORCHELASTIC_RESTART_COUNT")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if again else os.O_EXCL)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open(self.path, flags, 0o666)
        except FileExistsError:
            raise _used(clocking.folder, self.path.name) from None
        except OSError as error:
            raise UsageError(f"--clock {clocking.folder}: {error.strerror}. Give another folder.") from error

    def header(self, *, device: "torch.device", backend: str, sync: str) -> None:
        """Write the first line.

        `backend` is that of the process group, or another transport of gradients, and `sync` the algorithm of
        gradient synchronization; both are empty without one.
        """
        import torch

        place, here = self._place, self._machine
        header = {
            "format": FORMAT,
            "rank": place.rank,
            "size": place.size,
            "local_rank": place.local_rank,
            "node": place.node,
            "nodes": place.nodes,
            "host": socket.gethostname(),
            "launcher": place.launcher,
            "kind": self._kind,
            "device": device.type,
            "device_name": device_name(device),
            "device_id": device_id(device),
            "threads": self._threads or torch.get_num_threads(),
            "processors": here.cpu.usable,
            "node_processors": here.cpu.machine,
            "processor": here.processor,
            "memory_bytes": here.memory_bytes,
            "cpus": ranges(here.cpu.allowed),
            "backend": backend,
            # The worker that runs a script for all averages no gradients.
            "sync": "" if self._kind == "once" else sync,
            "system": here.system,
            "torch": here.torch,
            **toolkit_versions(device.type),
            "driver": driver_version(device.type),
            "python": here.python,
            "samestep": here.samestep,
            "argv": [printable(word) for word in sys.argv],
            **({} if self._config is None else {"config": self._config}),
            "warm_up": self._clocking.warm_up,
            "steps": self._clocking.steps,
        }
        self.write([header])
        self._header_bytes = os.fstat(self._fd).st_size

    def forget_steps(self) -> None:
        """Remove all lines but the first."""
        os.ftruncate(self._fd, self._header_bytes)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, unless an earlier write failed; see `check`."""
        left = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        try:
            while left and not self._failure:  # on a nearly full disk, a write can be partial
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._failure = (
                f"--clock {self._clocking.folder}: cannot write {self.path.name}: {error.strerror}. "
                "The script ran to its end, but some of its steps are missing."
            )

    def check(self) -> None:
        """Raise the error of an earlier write, which did not interrupt the script.

        Raises:
            Error: lines are missing.
        """
        if self._failure:
            raise Error(self._failure)

    def end(
        self,
        ended: str,
        message: str,
        *,
        device: "torch.device",
        made: int,
        samples_per_epoch: int | None,
    ) -> None:
        """Write the last line, and close the file.

        Args:
            ended: ``steps`` if the run was stopped after them, ``end`` of the script, or ``error: ..``.
            message: text of the error.
            device: the worker's device.
            made: number of all steps, with those before the first recorded one.
            samples_per_epoch: over all workers; None if unknown.
        """
        last = {
            "ended": ended,
            "message": message,
            "made": made,
            "peak_memory_bytes": _peak_memory_bytes(),
            "peak_device_bytes": peak_device_bytes(device),
            "samples_per_epoch": samples_per_epoch,
        }
        self.write([last])
        os.close(self._fd)


def _own_threads(kind: Kind) -> int | None:
    """Return the threads of a worker that shares the cores with its helpers; None for another worker.

    It has all cores in unsplit calls, so its threads change while the script runs.
    """
    if kind != "once":
        return None
    import torch

    return torch.get_num_threads()


def _used(folder: Path, name: str) -> UsageError:
    return UsageError(
        f"--clock {folder}: {name} exists already, from another run. Give a folder without such files."
    )


def has_ended(path: Path) -> bool:
    """Return whether a worker's file is complete."""
    return bool(_last_line(path))


def has_recorded_its_steps(path: Path) -> bool:
    """Return whether a worker's file is complete because all requested steps were recorded."""
    return _last_line(path).startswith(f'{ENDED}"steps"'.encode())


def has_steps(path: Path) -> bool:
    """Return whether a worker's file has the line of a step."""
    lines = path.read_text().splitlines() if path.exists() else []
    return any(not line.startswith(ENDED) for line in lines[1:])


def _last_line(path: Path) -> bytes:
    """Return the last line of a worker's file if it is complete; otherwise nothing."""
    try:
        fd = _open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        end = os.pread(fd, 1 << 16, max(0, os.fstat(fd).st_size - (1 << 16)))
    finally:
        os.close(fd)
    last = end.splitlines()[-1] if end.endswith(b"\n") else b""
    return last if last.startswith(ENDED.encode()) else b""


def _peak_memory_bytes() -> int | None:
    """Return the peak resident memory of this process; None if the system does not report it."""
    try:
        fd = _open("/proc/self/status", os.O_RDONLY)
    except OSError:
        return None
    try:
        status = os.read(fd, 1 << 16).decode()
    finally:
        os.close(fd)
    peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return peaks[0] * 1024 if peaks else None
