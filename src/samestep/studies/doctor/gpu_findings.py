"""Reports the accelerators of this host: their places, their links, and their problems."""

from collections.abc import Collection, Sequence
from dataclasses import asdict

from samestep.base.machine.topology import numbers
from samestep.base.units import bytes_text
from samestep.studies.doctor.check_result import Finding, Part, Row
from samestep.studies.doctor.gpus import Card, Copy, Gpu, Seen

# More than the context of this process and a display need.
_TAKEN = 2 * 2**30


def judge(seen: Seen, *, visible: int, uuid: str, allowed: Collection[int]) -> Part:
    """Return the rows, findings and facts of accelerators.

    Args:
        seen: the accelerators, their links and the copies between them.
        visible: number of accelerators that this process sees.
        uuid: identifier of the one that it would use; empty if it uses none.
        allowed: the processors in its affinity mask.
    """
    findings = [*_wrong_copies(seen.copies), *_narrow(seen.cards)]
    if seen.cards and not visible:
        plural = ", ".join(f"{card.vendor} at {card.address}" for card in seen.cards)
        findings.append(
            Finding(
                text=f"torch sees no accelerator, but the host has {plural}. To use it, check the build "
                "of torch, the driver, CUDA_VISIBLE_DEVICES, the request of the job, and --gpus of the "
                "container.",
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


def _wrong_copies(copies: Sequence[Copy]) -> list[Finding]:
    wrong = [copy for copy in copies if copy.wrong]
    if not wrong:
        return []
    first = wrong[0]
    return [
        Finding(
            text=f"Copies between GPUs arrive wrong: {first.wrong} of {first.values} values from GPU "
            f"{first.source} to GPU {first.target}, and {len(wrong)} pair(s) in all. Trainings here give "
            "garbage, or NaN. The cause is usually the IOMMU or PCIe access control (ACS) of a bare machine: "
            "disable them in the firmware; until then set NCCL_P2P_DISABLE=1."
        )
    ]


def _narrow(every: Sequence[Card]) -> list[Finding]:
    narrow = [card for card in every if 0 < card.width[0] < card.width[1]]
    if not narrow:
        return []
    named = ", ".join(f"{card.address} (x{card.width[0]} of x{card.width[1]})" for card in narrow)
    text = f"Cards use fewer PCIe lanes than they have: {named}. Check their seating, and for shared slots."
    return [Finding(text=text, hurts=False)]


def _taken(own: Gpu) -> list[Finding]:
    if own.used < _TAKEN:
        return []
    text = (
        f"GPU {own.index} ({own.address}), which this rank would use, has {bytes_text(own.used)} of "
        f"{bytes_text(own.memory)} in use already. `nvidia-smi` lists the processes; end orphaned workers "
        "with `kill`."
    )
    return [Finding(text=text)]


def _far(own: Gpu, every: Sequence[Card], allowed: Collection[int]) -> list[Finding]:
    card = next((one for one in every if one.address == own.address), None)
    if card is None or not card.cpus or card.numa is None:
        return []
    if set(numbers(card.cpus)) & set(allowed):
        return []
    text = (
        f"This rank's processors are not near its GPU {own.index}, which is at NUMA node {card.numa} (CPUs "
        f"{card.cpus}): copies to it cross the sockets. Bind ranks to their GPU's node "
        "(samestep run --bind numa, srun --gpu-bind=closest, mpirun --map-by numa)."
    )
    return [Finding(text=text, hurts=False)]


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
    every = sorted({number for pair in links for number in pair})
    rows = [("gpu links", "      " + "".join(f"{number:>6}" for number in every))] if every else []
    for a in every:
        cells = "".join(f"{'-' if a == b else links.get((a, b), '?'):>6}" for b in every)
        rows.append(("", f"{a:>6}{cells}"))
    return rows


def _copy_rows(copies: Sequence[Copy]) -> list[Row]:
    every = sorted({copy.source for copy in copies})
    by_pair = {(copy.source, copy.target): copy for copy in copies}
    rows = [("gpu copies", "GB/s  " + "".join(f"{number:>8}" for number in every))] if every else []
    for a in every:
        cells = []
        for b in every:
            copy = by_pair.get((a, b))
            mark = "" if copy is None or copy.direct else "h"
            cells.append(
                "-" if copy is None else "WRONG" if copy.wrong else f"{copy.bytes_per_s / 1e9:.3g}{mark}"
            )
        rows.append(("", f"{a:>6}" + "".join(f"{cell:>8}" for cell in cells)))
    if any(not copy.direct for copy in copies):
        rows.append(("", "h: through host memory"))
    return rows
