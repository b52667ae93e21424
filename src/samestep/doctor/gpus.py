"""Checks the slots and links of this host's accelerators, and the copies between them.

Sysfs has the slot of each card, and the driver's tool lists the links between cards. Only a copy that is
compared shows whether a link is correct: with the IOMMU settings of some machines, peer-to-peer copies
between GPUs arrive as garbage, without any error.
"""

import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from samestep.base.machine.description import numbers
from samestep.base.machine.kernel_files import folders_in, number_of, text_of
from samestep.base.units import bytes_text
from samestep.doctor.context import Context, Finding, Result, Row, matrix, note, problem, rows

if TYPE_CHECKING:
    import torch

_DISPLAY_OR_ACCELERATOR = (0x03, 0x12)  # base classes of PCI
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_QUERY = "index,uuid,pci.bus_id,name,memory.total,memory.used"
_TOOL_S = 15.0  # without its daemon, the driver first takes some seconds per GPU
_VALUES = 4 * 2**20  # 32 MiB as int64
_TIMES = 4  # copies that are timed together
# More than the context of this process and a display need.
_TAKEN = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Card in a slot, from sysfs."""

    address: str  # its place on the PCI bus, such as ``0000:17:00.0``
    vendor: str  # its manufacturer
    numa: int | None  # the NUMA node of its slot; None if there is only one, or if it is unknown
    cpus: str  # the processors near it, as a list like ``0-15,32-47``
    width: tuple[int, int] = (0, 0)  # lanes that it uses, and lanes that it has; 0 if unknown
    speed: str = ""  # speed of a lane, as sysfs writes it


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU from the list of the driver's tool; memory in bytes."""

    index: int
    uuid: str
    address: str
    name: str
    memory: int
    used: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Result of a copy from one GPU to another."""

    source: int  # index of the first GPU in this process
    target: int  # index of the second GPU in this process
    direct: bool  # whether the copy bypasses host memory
    wrong: int  # number of values that arrived changed
    values: int  # number of copied values
    bytes_per_s: float  # bandwidth of the copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """Accelerators of this host, their links, and the copies between them."""

    cards: Sequence[Card] = ()  # accelerators in slots
    gpus: Sequence[Gpu] = ()  # GPUs that the driver's tool lists; empty without the tool
    # of pairs of GPU numbers: ``NV18``, ``PIX``
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    copies: Sequence[Copy] = ()  # results of copies between the devices that this process sees


def check(context: Context) -> Result:
    """Check the GPUs, and copy between those that this process sees; one rank of a host copies for all."""
    devices, choice = context.devices, context.choice
    copies = []
    if devices is not None and devices.kind == "cuda" and devices.count > 1 and not context.place.local_rank:
        copies = _copies_here()
    return judge(
        read(context.root, copies),
        visible=None if devices is None else devices.count,
        uuid="" if choice is None else choice.uuid,
        allowed=context.machine.cpu.allowed,
    )


def read(root: Path = Path("/"), copies: Sequence[Copy] = ()) -> Accelerators:
    """Return the accelerators of this host; the driver's tool is called only if there is a card."""
    cards = read_cards(root)
    if not any(card.vendor == "NVIDIA" for card in cards) and not any((root / "dev").glob("nvidia[0-9]*")):
        return Accelerators(cards=cards, copies=copies)
    gpus = parse_gpus(nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    links = parse_links(nvidia_smi("topo", "-m")) if len(gpus) > 1 else {}
    return Accelerators(cards=cards, gpus=gpus, links=links, copies=copies)


def read_cards(root: Path = Path("/")) -> list[Card]:
    """Return the accelerators that sysfs lists, according to the folder of /sys in `root`."""
    cards = []
    for slot in folders_in(root / "sys/bus/pci/devices"):
        vendor, kind = number_of(slot / "vendor"), number_of(slot / "class") or 0
        if vendor not in _VENDORS or kind >> 16 not in _DISPLAY_OR_ACCELERATOR:
            continue
        numa = number_of(slot / "numa_node")
        cards.append(
            Card(
                address=slot.name,
                vendor=_VENDORS[vendor],
                numa=None if numa is None or numa < 0 else numa,
                cpus=text_of(slot / "local_cpulist"),
                width=(number_of(slot / "current_link_width") or 0, number_of(slot / "max_link_width") or 0),
                speed=text_of(slot / "current_link_speed"),
            )
        )
    return cards


def parse_gpus(text: str) -> list[Gpu]:
    """Read ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``; its memory is in MiB."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_QUERY.split(",")) and fields[0].isdecimal():
            index, uuid, address, name, *mib = fields
            memory, used = (int(size) * 2**20 if size.isdecimal() else 0 for size in mib)
            # Sysfs writes four digits of the domain; the tool writes eight, in capitals.
            gpus.append(Gpu(int(index), uuid, address.lower()[-12:], name, memory, used))
    return gpus


def parse_links(text: str) -> dict[tuple[int, int], str]:
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


def nvidia_smi(*arguments: str) -> str:
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


def copy_all_pairs(
    count: int, copy: Callable[[int, int], tuple[int, int, float]], direct: Callable[[int, int], bool]
) -> list[Copy]:
    """Copy between each pair of `count` devices in both directions, with `copy` as `copy_and_compare` does.

    `direct` returns whether a pair can copy without host memory.
    """
    return [Copy(a, b, direct(a, b), *copy(a, b)) for a, b in permutations(range(count), 2)]


def copy_and_compare(source: "torch.device", target: "torch.device", values: int) -> tuple[int, int, float]:
    """Copy distinct numbers; return the number of wrong values, the number of values, and bytes/s."""
    import torch

    def wait() -> None:
        for device in (source, target):
            if device.type != "cpu":
                torch.accelerator.synchronize(device)

    sent = torch.arange(1, values + 1, dtype=torch.int64, device=source)
    arrived = torch.zeros_like(sent, device=target)  # a value that no copy reaches counts as wrong
    arrived.copy_(sent)
    wait()
    expected = torch.arange(1, values + 1, dtype=torch.int64, device=target)
    wrong = int((arrived != expected).sum().item())
    wait()
    begin = time.perf_counter()
    for _ in range(_TIMES):
        arrived.copy_(sent)
    wait()
    took = time.perf_counter() - begin
    return wrong, values, _TIMES * sent.numel() * sent.element_size() / took


def _copies_here() -> list[Copy]:
    """Copy between all pairs of CUDA devices; opens a context on each."""
    import torch

    def copy(source: int, target: int) -> tuple[int, int, float]:
        return copy_and_compare(torch.device("cuda", source), torch.device("cuda", target), _VALUES)

    return copy_all_pairs(torch.cuda.device_count(), copy, torch.cuda.can_device_access_peer)


def judge(accelerators: Accelerators, *, visible: int | None, uuid: str, allowed: Collection[int]) -> Result:
    """Return the rows, findings and facts of accelerators.

    The process sees `visible` of them (None if they were not detected), would use the one with `uuid` (empty
    if none), and is bound to the `allowed` processors.
    """
    used = next((gpu for gpu in accelerators.gpus if uuid and uuid in gpu.uuid), None)
    return Result(
        rows=[*_card_rows(accelerators), *_link_rows(accelerators.links), *_copy_rows(accelerators.copies)],
        findings=[
            *_about_copies(accelerators.copies),
            *_about_cards(accelerators.cards, visible),
            *([] if used is None else _about_own(used, accelerators.cards, allowed)),
        ],
        facts={
            "cards": [asdict(card) for card in accelerators.cards],
            "gpus": [asdict(gpu) for gpu in accelerators.gpus],
            "gpu_links": {f"{a}-{b}": link for (a, b), link in accelerators.links.items()},
            "gpu_copies": [asdict(copy) for copy in accelerators.copies],
        },
    )


def _about_copies(copies: Sequence[Copy]) -> Iterator[Finding]:
    wrong = [copy for copy in copies if copy.wrong]
    for first in wrong[:1]:
        yield problem(
            f"Copies between GPUs arrive wrong: {first.wrong} of {first.values} values from GPU "
            f"{first.source} to GPU {first.target}, and {len(wrong)} pair(s) in all. Trainings here give "
            "garbage, or NaN. The cause is usually the IOMMU or PCIe access control (ACS) of a bare machine: "
            "disable them in the firmware; until then set NCCL_P2P_DISABLE=1."
        )


def _about_cards(cards: Sequence[Card], visible: int | None) -> Iterator[Finding]:
    narrow = [card for card in cards if 0 < card.width[0] < card.width[1]]
    if narrow:
        named = ", ".join(f"{card.address} (x{card.width[0]} of x{card.width[1]})" for card in narrow)
        yield note(
            f"Cards use fewer PCIe lanes than they have: {named}. Check their seating, and for shared slots."
        )
    if cards and visible == 0:
        yield note(
            "torch sees no accelerator, but the host has "
            f"{', '.join(f'{card.vendor} at {card.address}' for card in cards)}. To use it, check the build "
            "of torch, the driver, CUDA_VISIBLE_DEVICES, the request of the job, and --gpus of the container."
        )


def _about_own(gpu: Gpu, cards: Sequence[Card], allowed: Collection[int]) -> Iterator[Finding]:
    if gpu.used >= _TAKEN:
        yield problem(
            f"GPU {gpu.index} ({gpu.address}), which this rank would use, has {bytes_text(gpu.used)} of "
            f"{bytes_text(gpu.memory)} in use already. `nvidia-smi` lists the processes; end orphaned "
            "workers with `kill`."
        )
    card = next((slot for slot in cards if slot.address == gpu.address), None)
    if (
        card is not None
        and card.numa is not None
        and card.cpus
        and not set(numbers(card.cpus)) & set(allowed)
    ):
        yield note(
            f"This rank's processors are not near its GPU {gpu.index}, which is at NUMA node {card.numa} "
            f"(CPUs {card.cpus}): copies to it cross the sockets. Bind ranks to their GPU's node "
            "(samestep run --bind numa, srun --gpu-bind=closest, mpirun --map-by numa)."
        )


def _card_rows(accelerators: Accelerators) -> list[Row]:
    names = {gpu.address: f"GPU {gpu.index} {gpu.name}" for gpu in accelerators.gpus}
    texts = []
    for card in accelerators.cards:
        numa = "" if card.numa is None else f", NUMA node {card.numa} (CPUs {card.cpus})"
        lanes = f", PCIe x{card.width[0]} {card.speed}".rstrip() if card.width[0] else ""
        texts.append(f"{names.get(card.address, card.vendor)} at {card.address}{numa}{lanes}")
    return rows("cards", texts)


def _link_rows(links: Mapping[tuple[int, int], str]) -> list[Row]:
    numbered = sorted({number for pair in links for number in pair})
    return rows("gpu links", matrix("", numbered, links, width=6)) if links else []


def _copy_rows(copies: Sequence[Copy]) -> list[Row]:
    cells = {}
    for copy in copies:
        speed = f"{copy.bytes_per_s / 1e9:.3g}{'' if copy.direct else 'h'}"
        cells[copy.source, copy.target] = "WRONG" if copy.wrong else speed
    legend = [] if all(copy.direct for copy in copies) else ["h: through host memory"]
    every = sorted({copy.source for copy in copies})
    return rows("gpu copies", [*matrix("GB/s", every, cells), *legend]) if copies else []
