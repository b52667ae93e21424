"""Reads the slots and links of this host's accelerators, and tests copies between them.

Sysfs has the slot of each card, and the driver's tool lists the links between cards. Only a copy that is
compared shows whether a link is correct: with the IOMMU settings of some machines, peer-to-peer copies
between GPUs arrive as garbage, without any error.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.kernel_files import folders_in, number_of, text_of

_DISPLAY_OR_ACCELERATOR = (0x03, 0x12)
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_QUERY = "index,uuid,pci.bus_id,name,memory.total,memory.used"
_TOOL_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Card in a slot, from sysfs.

    Args:
        address: its place on the PCI bus, such as ``0000:17:00.0``.
        vendor: its manufacturer.
        numa: the NUMA node of its slot; None if there is only one, or if it is unknown.
        cpus: the processors near it, as a list like ``0-15,32-47``.
        width: lanes that it uses, and lanes that it has; 0 if unknown.
        speed: speed of a lane, as sysfs writes it.
    """

    address: str
    vendor: str
    numa: int | None
    cpus: str
    width: tuple[int, int] = (0, 0)
    speed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """GPU from the list of the driver's tool; memory in bytes."""

    index: int
    uuid: str
    address: str
    name: str
    memory: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Result of a copy from one GPU to another.

    Args:
        source: index of the first GPU in this process.
        target: index of the second GPU in this process.
        direct: whether the copy bypasses host memory.
        wrong: number of values that arrived changed.
        values: number of copied values.
        bytes_per_s: bandwidth of the copy.
    """

    source: int
    target: int
    direct: bool
    wrong: int
    values: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Accelerators of this host, their links, and the copies between them.

    Args:
        cards: accelerators in slots.
        gpus: GPUs that the driver's tool lists; empty without the tool.
        links: link of each pair of GPU numbers, as the tool writes it: ``NV18``, ``PIX``, ``SYS``.
        copies: results of copies between the devices that this process sees.
    """

    cards: Sequence[Card] = ()
    gpus: Sequence[Gpu] = ()
    links: Mapping[tuple[int, int], str] | None = None
    copies: Sequence[Copy] = ()


def cards(*, root: Path = Path("/")) -> list[Card]:
    """Return the accelerators that sysfs lists.

    Args:
        root: the folder of /sys.
    """
    found = []
    for slot in folders_in(root / "sys/bus/pci/devices"):
        vendor, kind = number_of(slot / "vendor"), number_of(slot / "class") or 0
        if vendor not in _VENDORS or kind >> 16 not in _DISPLAY_OR_ACCELERATOR:
            continue
        numa = number_of(slot / "numa_node")
        found.append(
            Card(
                address=slot.name,
                vendor=_VENDORS[vendor],
                numa=None if numa is None or numa < 0 else numa,
                cpus=text_of(slot / "local_cpulist"),
                width=(number_of(slot / "current_link_width") or 0, number_of(slot / "max_link_width") or 0),
                speed=text_of(slot / "current_link_speed"),
            )
        )
    return found


def parsed_gpus(text: str) -> list[Gpu]:
    """Read ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``; its memory is in MiB."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_QUERY.split(",")) and fields[0].isdecimal():
            index, uuid, address, name, total, used = fields
            mib = [int(one) * 2**20 if one.isdecimal() else 0 for one in (total, used)]
            found.append(
                Gpu(
                    index=int(index),
                    uuid=uuid,
                    address=_short_address(address),
                    name=name,
                    memory=mib[0],
                    used=mib[1],
                )
            )
    return found


def parsed_links(text: str) -> dict[tuple[int, int], str]:
    """Return the link of each pair of GPUs from the matrix of ``nvidia-smi topo -m``."""
    links: dict[tuple[int, int], str] = {}
    columns: list[str] = []
    for line in text.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if not columns and words[:1] == ["GPU0"]:
            columns = words
        elif columns and words and re.fullmatch(r"GPU\d+", words[0]):
            for column, link in zip(columns, words[1:], strict=False):
                if re.fullmatch(r"GPU\d+", column) and link != "X":
                    links[int(words[0][3:]), int(column[3:])] = link
    return links


def ask_tool(*arguments: str) -> str:
    """Return the output of ``nvidia-smi``; an empty text if the tool is missing or fails.

    Raises:
        TimeoutError: it does not respond.
    """
    try:
        command = ["nvidia-smi", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TOOL_S).stdout
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(
            f"nvidia-smi did not answer within {_TOOL_S:g} s: the driver hangs. See `dmesg | grep -i xid`; "
            "the host may need a restart."
        ) from error
    except (OSError, subprocess.CalledProcessError):
        return ""


def look(*, root: Path, copies: Sequence[Copy]) -> Seen:
    """Return the accelerators of this host; the driver's tool is called only if there is a card."""
    found = cards(root=root)
    if not any(card.vendor == "NVIDIA" for card in found) and not any((root / "dev").glob("nvidia[0-9]*")):
        return Seen(cards=found, copies=copies)
    gpus = parsed_gpus(ask_tool(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    links = parsed_links(ask_tool("topo", "-m")) if len(gpus) > 1 else {}
    return Seen(cards=found, gpus=gpus, links=links, copies=copies)


def copied(
    count: int, copy: Callable[[int, int], tuple[int, int, float]], direct: Callable[[int, int], bool]
) -> list[Copy]:
    """Copy between each pair of `count` devices in both directions.

    Args:
        count: number of devices that this process sees.
        copy: copies from one device to another; returns the number of wrong values, the number of values, and
            bytes/s.
        direct: returns whether a pair can copy without host memory.
    """
    found = []
    for source in range(count):
        for target in range(count):
            if source != target:
                wrong, values, speed = copy(source, target)
                found.append(
                    Copy(
                        source=source,
                        target=target,
                        direct=direct(source, target),
                        wrong=wrong,
                        values=values,
                        bytes_per_s=speed,
                    )
                )
    return found


def _short_address(address: str) -> str:
    """Return a PCI address as sysfs writes it; the tool writes eight digits of the domain, in capitals."""
    return address.lower()[-12:]
