"""Identifies a process beyond its number: numbers are used again, on other hosts and in containers."""

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Life: TypeAlias = Literal["alive", "dead", "unknown"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process.

    Args:
        pid: its number.
        started: when it was started, in the system's own unit; empty where that is unknown.
        boot: identifies the time since the host was started.
        host: the host's name.
        numbering: identifies the name space that the number belongs to.
    """

    pid: int
    started: str
    boot: str
    host: str
    numbering: str

    @classmethod
    def here(cls) -> "Owner":
        """Return this process."""
        return cls(pid=os.getpid(), started=_started(os.getpid()), **_surroundings())

    @classmethod
    def of_record(cls, record: object) -> "Owner":
        """Return the process of a record that `as_record` gave.

        Raises:
            ValueError: it is no such record.
        """
        kinds = {"pid": int, "started": str, "boot": str, "host": str, "numbering": str}
        if not isinstance(record, dict) or record.keys() != kinds.keys():
            raise ValueError("no record of a process")
        if any(type(record[name]) is not kind for name, kind in kinds.items()) or record["pid"] < 1:
            raise ValueError("a record of a process with other types")
        return cls(**record)

    def as_record(self) -> dict[str, Any]:
        """Return this as plain values."""
        return asdict(self)

    def life(self) -> Life:
        """Return whether the process lives, as far as that can be found out from here."""
        here = _surroundings()
        if self.host != here["host"]:
            return "unknown"
        if self.boot != here["boot"]:  # the host was started again since
            return "dead"
        if self.numbering != here["numbering"]:
            return "unknown"
        return "alive" if self.started == _started(self.pid) else "dead"


def _surroundings() -> dict[str, str]:
    return {"boot": _boot(), "host": socket.gethostname(), "numbering": _numbering()}


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:  # not Linux
        return ""


def _numbering() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""


def _started(pid: int) -> str:
    """Return when a process was started; empty if it is gone, or is only still to be waited for."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return _started_elsewhere(pid)
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _started_elsewhere(pid: int) -> str:
    """Return the same on a system without Linux's files."""
    if Path("/proc/self/stat").exists():
        return ""
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""
