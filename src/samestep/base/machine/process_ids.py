"""Lists the process ids of a host with containers, where several processes can have one id.

torch names its shared memory after the id that the process has in its own container. Containers have
pid namespaces of their own, and can share memory with each other and with the host.
"""

from contextlib import suppress
from pathlib import Path

# The kernel's fixed ids of the host's pid and IPC namespaces.
_HOSTS_PID = "pid:[4026531836]"
_HOSTS_IPC = "ipc:[4026531839]"


def numbers_of_the_living(proc: Path = Path("/proc")) -> set[str] | None:
    """Return all ids of all processes of this host, including those within their containers.

    Args:
        proc: the ``/proc`` folder.

    Returns:
        None where not all are visible: in a container, or where other users' processes are hidden.
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
    """Return whether this container shares memory, but not process ids, with the host (``--ipc=host``).

    Args:
        proc: the ``/proc`` folder.
    """
    return _name_space(proc, "ipc") == _HOSTS_IPC and _name_space(proc, "pid") != _HOSTS_PID


def _name_space(proc: Path, kind: str) -> str:
    with suppress(OSError):
        return str((proc / "self" / "ns" / kind).readlink())
    return ""
