"""What the steps of one worker took, in a file: ``rank-R.jsonl``, one JSON object per line.

===========  ================================================================================
first line   who and where: rank, launcher, device, threads, versions (`header`)
next lines   a step each: when it began, its seconds, its samples, the seconds of its phases
last line    how it ended: ``ended``, the most memory, samples of an epoch
===========  ================================================================================
"""

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from samestep.base import phases
from samestep.base.errors import Error, UsageError
from samestep.base.machine import machine, processor
from samestep.base.place import Place
from samestep.base.topology import ranges
from samestep.measure.versions import driver, torchs_own

if TYPE_CHECKING:
    import torch

FORMAT = 1
STEP_PHASES = phases.ALL
"""The phases of a step; their seconds add up to the step's."""
ENDED = '{"ended": '
"""How the last line begins, and no other."""

Kind: TypeAlias = Literal["serial", "steered", "native", "recipe"]

Config: TypeAlias = Mapping[str, Any]

# The script may run where files are opened in its own place; ours are real.
_open = os.open


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocking:
    """What a user wants to have clocked.

    Args:
        folder: where the files of all workers go.
        steps: how many steps are taken down before the run is stopped; None for all of them.
        warm_up: steps before those.
    """

    folder: Path
    steps: int | None = None
    warm_up: int = 5

    def file_of(self, rank: int) -> Path:
        """Return the file of a worker."""
        return self.folder / f"rank-{rank}.jsonl"

    def refuse_used(self) -> None:
        """Refuse a folder of another run before any worker is started, each of which would refuse it too.

        Raises:
            UsageError: it is such a one.
        """
        there = next(self.folder.glob("rank-*.jsonl"), None)
        if there is not None:
            raise _used(self.folder, there.name)

    def stopped_words(self) -> str:
        """Return what is said where a run was stopped after as many steps as were wanted."""
        return (
            f"stopped after {self.steps} clocked steps, as --clock-steps says. They are in {self.folder}, "
            "which samestep report --scaling reads."
        )


class ClockFile:
    """The file of one worker.

    Args:
        clocking: what is wanted.
        place: whose it is.
        kind: what runs.
        again: whether the workers were started anew after a failure, and the file may be.
        config: what a recipe is trained as.

    Raises:
        UsageError: there is such a file already, or there can be none.
    """

    def __init__(
        self,
        clocking: Clocking,
        place: Place,
        kind: Kind,
        *,
        again: bool = False,
        config: Config | None = None,
    ) -> None:
        self._clocking, self._place, self._kind, self._config = clocking, place, kind, config
        self.path = clocking.file_of(place.rank).absolute()
        # Now, before anything is clocked: steps would have a part of the 10 to 30 ms that it takes.
        self._machine = machine()
        self._header_bytes = 0
        self._failure = ""
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

        Args:
            device: that this worker computes on.
            backend: of its process group, or what else carries gradients; empty without one.
            sync: how gradients are exchanged; empty where they are not.
        """
        import torch

        place, here = self._place, self._machine
        said = {
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
            "device_name": _name(device),
            "device_id": _id(device),
            "threads": torch.get_num_threads(),
            "processors": here.cpu.usable,
            "node_processors": here.cpu.machine,
            "processor": here.processor,
            "memory_bytes": here.memory_bytes,
            "cpus": ranges(here.cpu.allowed),
            "backend": backend,
            "sync": sync,
            "system": here.system,
            "torch": here.torch,
            **torchs_own(device.type),
            "driver": driver(device.type),
            "python": here.python,
            "samestep": here.samestep,
            "argv": sys.argv,
            **({} if self._config is None else {"config": self._config}),
            "warm_up": self._clocking.warm_up,
            "steps": self._clocking.steps,
        }
        self.write([said])
        self._header_bytes = os.fstat(self._fd).st_size

    def forget_steps(self) -> None:
        """Take back all lines but the first."""
        os.ftruncate(self._fd, self._header_bytes)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, unless some could not be written before; see `check`."""
        left = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        try:
            while left and not self._failure:  # a disk that is nearly full takes a part
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._failure = (
                f"--clock {self._clocking.folder}: cannot write {self.path.name}: {error.strerror}. "
                "The script went on, but its steps are not all there."
            )

    def check(self) -> None:
        """Refuse to end well where lines are missing; the script that is clocked is not disturbed by it.

        Raises:
            Error: some could not be written.
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
            ended: ``steps`` as many as were wanted, ``end`` of the script, ``error: ..``.
            message: of the error.
            device: that this worker computed on.
            made: steps in all, with those before the first that is taken down.
            samples_per_epoch: of all workers together; None where that is not known.
        """
        said = {
            "ended": ended,
            "message": message,
            "made": made,
            "peak_memory_bytes": _peak_memory_bytes(),
            "peak_device_bytes": _peak_device_bytes(device),
            "samples_per_epoch": samples_per_epoch,
        }
        self.write([said])
        os.close(self._fd)


def _used(folder: Path, name: str) -> UsageError:
    return UsageError(
        f"--clock {folder}: {name} is there already, from another run. Give a folder without such files."
    )


def has_ended(path: Path) -> bool:
    """Return whether the last line of a worker's file is there."""
    try:
        fd = _open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        end = os.pread(fd, 1 << 16, max(0, os.fstat(fd).st_size - (1 << 16)))
    finally:
        os.close(fd)
    return end.endswith(b"\n") and end.splitlines()[-1].startswith(ENDED.encode())


def _name(device: "torch.device") -> str:
    if device.type == "cpu":
        return processor()
    name = getattr(_backend(device), "get_device_name", None)
    return device.type if name is None else str(name(device))


def _id(device: "torch.device") -> str:
    """Return what tells an accelerator from others of its host, whatever its number; empty for nothing."""
    ask = getattr(_backend(device), "get_device_properties", None)
    return "" if device.type == "cpu" or ask is None else str(getattr(ask(device), "uuid", ""))


def _backend(device: "torch.device") -> Any:
    import torch

    return getattr(torch, device.type, None)


def _peak_memory_bytes() -> int | None:
    """Return the most memory that this process has had at a time, where the system tells."""
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


def _peak_device_bytes(device: "torch.device") -> int:
    """Return the most memory that tensors have had on an accelerator at a time."""
    if device.type == "cpu":
        return 0
    ask = getattr(_backend(device), "max_memory_allocated", None)
    return 0 if ask is None else int(ask(device))
