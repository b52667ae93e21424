"""Lists which back end of torch.distributed suits which device and network, and which one applies here."""

import shutil
import socket
from typing import Any

import psutil
import torch.distributed as dist

from samestep.base.machine.accelerators import accelerator_count
from samestep.base.machine.interfaces import interfaces
from samestep.doctor.gpus import nvidia_smi, parse_links
from samestep_lab.experiments.experiment import Outcome, Setup, Table

ROWS = (
    ("NVIDIA GPUs", "any", "nccl", "ring, tree and others, chosen by size and topology"),
    ("Intel GPUs", "any", "xccl", "chosen by oneCCL"),
    ("CPU", "InfiniBand with IP over InfiniBand, or Ethernet", "gloo", "ring in chunks"),
    ("CPU", "InfiniBand without IP", "mpi", "chosen by the MPI library; torch must be built with it"),
)
"""Device, network, back end, and its all-reduce."""


def applies_here(*, accelerators: int, names: list[str], has_ip: bool) -> int:
    """Return the number of the row that applies.

    Args:
        accelerators: number of GPUs of this machine.
        names: available back ends.
        has_ip: whether an interface other than loopback has an IP address.
    """
    if accelerators:
        return 1 if "xccl" in names and "nccl" not in names else 0
    return 3 if "mpi" in names and not has_ip else 2


def available() -> list[str]:
    """Return the back ends that this build of torch has."""
    return [name for name in ("nccl", "xccl", "gloo", "mpi") if dist.is_backend_available(name)]


def nvlink_pairs(matrix: str) -> list[tuple[int, int]]:
    """Return the pairs of GPUs that NVLink connects, from the output of ``nvidia-smi topo -m``."""
    links = parse_links(matrix)
    return [pair for pair, link in links.items() if pair[0] < pair[1] and link.startswith("NV")]


def links_here(count: int) -> str:
    """Return a sentence about NVLink between the GPUs of this machine; empty without two of NVIDIA."""
    if count < 2 or shutil.which("nvidia-smi") is None:
        return ""
    pairs = nvlink_pairs(nvidia_smi("topo", "-m"))
    text = ", ".join(f"{gpu} and {peer}" for gpu, peer in pairs) or "no GPUs"
    return f" NVLink connects {text}; nvidia-smi topo -m shows the other connections."


def run(setup: Setup) -> Outcome:
    """Run the experiment; it starts no ranks."""
    del setup
    addresses = {
        name: [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        for name, entries in psutil.net_if_addrs().items()
    }
    usable = [interface for interface in interfaces(addresses) if interface.up and not interface.loopback]
    names, count = available(), accelerator_count()
    here = applies_here(
        accelerators=count, names=names, has_ip=any(interface.addresses for interface in usable)
    )
    rows = [
        (*row, "yes" if row[2] in names else "no", "this one" if number == here else "")
        for number, row in enumerate(ROWS)
    ]
    device = f"{count} accelerators" if count else "no accelerator"
    network = "; ".join(interface.describe() for interface in usable) or "no interface besides loopback"
    values: dict[str, Any] = {
        "available": names,
        "accelerators": count,
        "interfaces": [interface.name for interface in usable],
        "applies": ROWS[here][2],
    }
    head = ("device", "network", "back end", "its all-reduce", "in this torch", "here")
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=f"{ROWS[here][2]} applies here: this machine has {device}, and {network}."
        f"{links_here(count)} Nothing is timed.",
        values=values,
    )
