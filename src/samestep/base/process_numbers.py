"""Process numbers on a host with containers, where one number may belong to several processes.

torch's shared memory is named after the process that made it, by the number that this one has for itself.
Containers number their processes on their own, and may share the memory with each other and with the host.
"""

from contextlib import suppress
from pathlib import Path

# The kernel's own numbers for the host's name spaces, of processes and of shared memory.
_HOSTS_PID = "pid:[4026531836]"
_HOSTS_IPC = "ipc:[4026531839]"


def numbers_of_the_living(proc: Path = Path("/proc")) -> set[str] | None:
    """Return all numbers of all processes of this host, also those that they have in their containers.

    Args:
        proc: where the processes are told.

    Returns:
        None where they cannot all be seen: in a container, or where others' processes are hidden.
    """
    if _name_space(proc, "pid") != _HOSTS_PID or not (proc / "1").exists():
        return None
    numbers: set[str] = set()
    for status in proc.glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended since
            lines = status.read_text(errors="replace").splitlines()
            numbers.add(status.parent.name)
            numbers.update(*(line.split()[1:] for line in lines if line.startswith("NSpid:")))
    return numbers


def memory_is_numbered_apart(proc: Path = Path("/proc")) -> bool:
    """Whether this container shares memory with the host, but has numbers of its own (``--ipc=host``).

    Args:
        proc: where the processes are told.
    """
    return _name_space(proc, "ipc") == _HOSTS_IPC and _name_space(proc, "pid") != _HOSTS_PID


def _name_space(proc: Path, kind: str) -> str:
    with suppress(OSError):
        return str((proc / "self" / "ns" / kind).readlink())
    return ""
