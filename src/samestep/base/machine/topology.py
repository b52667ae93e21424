"""Reads the cores, NUMA nodes and GPUs of this machine from ``/sys`` and ``/proc``."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.kernel_files import text_of


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core."""

    node: int  # NUMA node; 0 where unknown
    cpus: tuple[int, ...]  # numbers of its hardware threads that this process can use


def cores(allowed: Collection[int], *, system: Path = Path("/sys/devices/system")) -> tuple[Core, ...]:
    """Return the cores that the logical processors `allowed` are part of, node by node."""
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for cpu in numbers(text_of(folder / "cpulist"))
    }
    threads: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(allowed):
        siblings = text_of(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")
        threads.setdefault(tuple(numbers(siblings)) or (cpu,), []).append(cpu)
    found = [Core(node_of.get(cpus[0], 0), tuple(cpus)) for cpus in threads.values()]
    return tuple(sorted(found, key=lambda core: (core.node, core.cpus)))


def gpu_nodes(
    visible: str | None, *, root: Path = Path("/"), opens: Callable[[Path], bool] | None = None
) -> tuple[int, ...]:
    """Return the NUMA node of each NVIDIA GPU that this process sees, by CUDA's numbers.

    Empty where the nodes are unknown: no NVIDIA GPU, a machine of one node, or an unknown name in `visible`.
    `visible` is ``CUDA_VISIBLE_DEVICES``, if it is set. `opens` returns whether a device file can be opened;
    schedulers deny the GPUs of other jobs.
    """
    opens = opens or _opens
    seen: list[tuple[str, int]] = []  # UUID and node
    for folder in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        facts = dict(_pair(line) for line in text_of(folder / "information").splitlines())
        if opens(root / f"dev/nvidia{facts.get('Device Minor', '')}"):
            node = text_of(root / f"sys/bus/pci/devices/{folder.name}/numa_node")
            seen.append((facts.get("GPU UUID", ""), int(node or -1)))
    chosen = _chosen(seen, visible)
    return () if any(node < 0 for node in chosen) else tuple(chosen)


def numbers(text: str) -> list[int]:
    """Parse a list of numbers in the kernel's format.

    >>> numbers("0-3,8")
    [0, 1, 2, 3, 8]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip():
            found.extend(range(int(first), int(last or first) + 1))
    return found


def _chosen(seen: list[tuple[str, int]], visible: str | None) -> list[int]:
    if visible is None:
        return [node for _, node in seen]
    chosen = []
    for word in visible.split(","):
        name = word.strip()
        if name.isdecimal() and int(name) < len(seen):
            chosen.append(seen[int(name)][1])
        else:
            chosen += [node for uuid, node in seen if name and uuid.startswith(name)][:1] or [-1]
    return chosen


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
