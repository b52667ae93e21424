"""Where the accelerators of this host are, how they are linked, and whether copies between them arrive.

Sysfs says where a card is plugged in; the driver's own tool says how cards are linked; only a copy that is
compared says whether the link can be trusted: some machines' IOMMU settings let peer-to-peer copies between
GPUs arrive as garbage, without any error.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.kernel_files import folders_in, number_of, text_of

_DISPLAY_OR_ACCELERATOR = (0x03, 0x12)
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_QUERY = "index,uuid,pci.bus_id,name,memory.total,memory.used"
_TOOL_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card in a slot, as sysfs shows it.

    Args:
        address: its place on the PCI bus, such as ``0000:17:00.0``.
        vendor: who made it.
        numa: the NUMA node it is plugged into; None where there is one only, or nobody says.
        cpus: the processors near it, as a list like ``0-15,32-47``.
        width: lanes it uses, and lanes it has; 0 where unknown.
        speed: of a lane, in words.
    """

    address: str
    vendor: str
    numa: int | None
    cpus: str
    width: tuple[int, int] = (0, 0)
    speed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, as the driver's tool describes it; memory in bytes."""

    index: int
    uuid: str
    address: str
    name: str
    memory: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy from one GPU to another.

    Args:
        source: number of the one, as this process counts.
        target: number of the other.
        direct: whether it goes without host memory.
        wrong: values that arrived as others.
        values: values copied.
        bytes_per_s: how fast.
    """

    source: int
    target: int
    direct: bool
    wrong: int
    values: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was read.

    Args:
        cards: accelerators in slots.
        gpus: what the driver's tool lists; empty where there is none.
        links: how each pair is linked, by numbers, in the tool's words: ``NV18``, ``PIX``, ``SYS``.
        copies: between the devices that this process sees.
    """

    cards: Sequence[Card] = ()
    gpus: Sequence[Gpu] = ()
    links: Mapping[tuple[int, int], str] | None = None
    copies: Sequence[Copy] = ()


def cards(*, root: Path = Path("/")) -> list[Card]:
    """Return the accelerators that sysfs lists.

    Args:
        root: where /sys is.
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
    """Read the matrix of ``nvidia-smi topo -m``: how each pair of GPUs is linked."""
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
    """Return what ``nvidia-smi`` prints; empty where there is none, or it fails.

    Raises:
        TimeoutError: it does not answer.
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
    """Return what is known of this host's accelerators; the tool is asked only where there is a card."""
    found = cards(root=root)
    if not any(card.vendor == "NVIDIA" for card in found) and not any((root / "dev").glob("nvidia[0-9]*")):
        return Seen(cards=found, copies=copies)
    gpus = parsed_gpus(ask_tool(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    links = parsed_links(ask_tool("topo", "-m")) if len(gpus) > 1 else {}
    return Seen(cards=found, gpus=gpus, links=links, copies=copies)


def copied(
    count: int, copy: Callable[[int, int], tuple[int, int, float]], direct: Callable[[int, int], bool]
) -> list[Copy]:
    """Copy between each two of `count` devices, both ways.

    Args:
        count: devices that this process sees.
        copy: copies from one to another, and returns how many values were wrong, of how many, and bytes/s.
        direct: whether a pair can copy without host memory.
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
