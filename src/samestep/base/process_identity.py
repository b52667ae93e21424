"""Identifies a process by more than its id, and lists the processes that have started this one.

Ids recur: later, on other hosts and in containers.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.documents import PositiveInt
from samestep.base.machine.kernel_files import name_space, text_of

Life: TypeAlias = Literal["alive", "dead", "unknown"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The identity of a process."""

    pid: PositiveInt  # its process id
    started: str  # its start time in the system's unit; empty where unknown
    boot: str  # the boot id of its host
    host: str  # the name of its host
    numbering: str  # the pid namespace of `pid`

    @classmethod
    def here(cls) -> "Owner":
        """Return the identity of this process."""
        return cls(pid=os.getpid(), started=started_at(os.getpid()), **_this_host())

    def life(self) -> Life:
        """Return whether the process lives, as far as this process can find out."""
        here = _this_host()
        if self.host != here["host"]:
            return "unknown"
        if self.boot != here["boot"]:  # the host was rebooted since
            return "dead"
        if self.numbering != here["numbering"]:
            return "unknown"
        return "alive" if self.started == started_at(self.pid) else "dead"


def has_ended(pid: int) -> bool:
    """Return whether no process of this host has this id, but for a zombie."""
    return not started_at(pid)


def _this_host() -> dict[str, str]:
    return {"boot": text_of(_BOOT), "host": socket.gethostname(), "numbering": name_space("pid")}


def started_at(pid: int) -> str:
    """Return the start time of a process; empty if it has ended, also as a zombie."""
    try:
        # The name, in parentheses, can contain any character.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return _started_elsewhere(pid)
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _started_elsewhere(pid: int) -> str:
    """Return the same on a system without Linux's ``/proc``."""
    if Path("/proc/self/stat").exists():
        return ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


Ancestors = Callable[[], Iterator[tuple[str, Mapping[str, str]]]]
"""Function that yields an identity and the environment of this process's ancestors, nearest first."""


def ancestors() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the ancestors of this process that belong to the same user, nearest first."""
    import psutil

    with suppress(psutil.Error):  # another user's process, or gone: not this job's launcher
        for process in psutil.Process().parents():
            yield str(process.pid), process.environ()
