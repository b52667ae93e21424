"""Where the accelerators of this host are, how they are linked, and whether copies between them arrive.

Sysfs says where a card is plugged in; the driver's own tool says how cards are linked; only a copy that is
compared says whether the link can be trusted: some machines' IOMMU settings let peer-to-peer copies between
GPUs arrive as garbage, without any error.
"""

import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.base.units import bytes_text
from samestep.doctor.files import folders_in, number_of, text_of
from samestep.doctor.part import Finding, Part, Row

_DISPLAY_OR_ACCELERATOR = (0x03, 0x12)
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_QUERY = "index,uuid,pci.bus_id,name,memory.total,memory.used"
_TOOL_S = 15.0
# More than a context of one's own and what a display takes.
_TAKEN = 2 * 2**30


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


def judge(seen: Seen, *, visible: int, uuid: str, allowed: Collection[int]) -> Part:
    """Return what is worth telling of accelerators.

    Args:
        seen: what was read.
        visible: how many this process sees.
        uuid: what identifies the one it would use; empty where it uses none.
        allowed: the processors it may use.
    """
    findings = [*_wrong_copies(seen.copies), *_narrow(seen.cards)]
    if seen.cards and not visible:
        plural = ", ".join(f"{card.vendor} at {card.address}" for card in seen.cards)
        findings.append(
            Finding(
                text=f"torch sees no accelerator, but the host has: {plural}. If it is meant to compute: a "
                "build of torch for it, its driver, CUDA_VISIBLE_DEVICES, the job's request, the container's "
                "--gpus.",
                hurts=False,
            )
        )
    own = next((gpu for gpu in seen.gpus if uuid and uuid in gpu.uuid), None)
    if own is not None:
        findings += [*_taken(own), *_far(own, seen.cards, allowed)]
    return Part(
        rows=(*_cards_rows(seen), *_link_rows(seen), *_copy_rows(seen.copies)),
        findings=tuple(findings),
        facts={
            "cards": [asdict(card) for card in seen.cards],
            "gpus": [asdict(gpu) for gpu in seen.gpus],
            "gpu_links": {f"{a}-{b}": link for (a, b), link in (seen.links or {}).items()},
            "gpu_copies": [asdict(copy) for copy in seen.copies],
        },
    )


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


def _wrong_copies(copies: Sequence[Copy]) -> list[Finding]:
    wrong = [copy for copy in copies if copy.wrong]
    if not wrong:
        return []
    first = wrong[0]
    return [
        Finding(
            text=f"Copies between GPUs arrive wrong: {first.wrong} of {first.values} values from GPU "
            f"{first.source} to GPU {first.target}, and {len(wrong)} pair(s) in all. Trainings here give "
            "garbage, or NaN. It is usually the IOMMU or PCIe access control (ACS) of a bare machine: switch "
            "them off in the firmware; until then set NCCL_P2P_DISABLE=1."
        )
    ]


def _narrow(every: Sequence[Card]) -> list[Finding]:
    narrow = [card for card in every if 0 < card.width[0] < card.width[1]]
    if not narrow:
        return []
    named = ", ".join(f"{card.address} (x{card.width[0]} of x{card.width[1]})" for card in narrow)
    text = f"Fewer PCIe lanes than the card has: {named}. A card that is not seated well, or a shared slot?"
    return [Finding(text=text, hurts=False)]


def _taken(own: Gpu) -> list[Finding]:
    if own.used < _TAKEN:
        return []
    text = (
        f"GPU {own.index} ({own.address}), which this rank would use, has {bytes_text(own.used)} of "
        f"{bytes_text(own.memory)} in use already. Whose is it? `nvidia-smi`; leftover workers are ended by "
        "`kill`."
    )
    return [Finding(text=text)]


def _far(own: Gpu, every: Sequence[Card], allowed: Collection[int]) -> list[Finding]:
    card = next((one for one in every if one.address == own.address), None)
    if card is None or not card.cpus or card.numa is None:
        return []
    near = cpus_in(card.cpus)
    if near & set(allowed):
        return []
    text = (
        f"This rank's processors are not near its GPU {own.index}, which is at NUMA node {card.numa} (CPUs "
        f"{card.cpus}): copies to it cross the sockets. Bind ranks to their GPU's node (srun "
        "--gpu-bind=closest, mpirun --map-by numa)."
    )
    return [Finding(text=text, hurts=False)]


def cpus_in(text: str) -> set[int]:
    """Return the numbers in a list like ``0-3,8``.

    >>> sorted(cpus_in("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdecimal():
            numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def _cards_rows(seen: Seen) -> list[Row]:
    names = {gpu.address: f"GPU {gpu.index} {gpu.name}" for gpu in seen.gpus}
    rows = []
    for i, card in enumerate(seen.cards):
        numa = "" if card.numa is None else f", NUMA node {card.numa} (CPUs {card.cpus})"
        lanes = f", PCIe x{card.width[0]} {card.speed}".rstrip() if card.width[0] else ""
        text = f"{names.get(card.address, card.vendor)} at {card.address}{numa}{lanes}"
        rows.append(("cards" if i == 0 else "", text))
    return rows


def _link_rows(seen: Seen) -> list[Row]:
    links = seen.links or {}
    numbers = sorted({number for pair in links for number in pair})
    rows = [("gpu links", "      " + "".join(f"{number:>6}" for number in numbers))] if numbers else []
    for a in numbers:
        cells = "".join(f"{'-' if a == b else links.get((a, b), '?'):>6}" for b in numbers)
        rows.append(("", f"{a:>6}{cells}"))
    return rows


def _copy_rows(copies: Sequence[Copy]) -> list[Row]:
    numbers = sorted({copy.source for copy in copies})
    by_pair = {(copy.source, copy.target): copy for copy in copies}
    rows = [("gpu copies", "GB/s  " + "".join(f"{number:>8}" for number in numbers))] if numbers else []
    for a in numbers:
        cells = []
        for b in numbers:
            copy = by_pair.get((a, b))
            mark = "" if copy is None or copy.direct else "h"
            cells.append(
                "-" if copy is None else "WRONG" if copy.wrong else f"{copy.bytes_per_s / 1e9:.3g}{mark}"
            )
        rows.append(("", f"{a:>6}" + "".join(f"{cell:>8}" for cell in cells)))
    if any(not copy.direct for copy in copies):
        rows.append(("", "h: through host memory"))
    return rows


def _short_address(address: str) -> str:
    """Return a PCI address as sysfs writes it; the tool writes eight digits of the domain, in capitals."""
    return address.lower()[-12:]
