"""Reads InfiniBand ports from sysfs, and checks whether software other than NCCL can use them.

NCCL uses the adapters directly; Gloo, torch's store and the bootstrap of NCCL need an IP address on one of
their network interfaces (IPoIB).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.base.machine.interfaces import Interface
from samestep.base.machine.kernel_files import folders_in, text_of
from samestep.studies.doctor.check_result import Finding, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of an adapter.

    Args:
        adapter: the kernel's name of the adapter, such as ``mlx5_0``.
        number: number of the port, from 1.
        state: ``ACTIVE``, ``DOWN``, ``INIT``, ...
        rate: rate as sysfs writes it, such as ``200 Gb/sec (4X HDR)``.
        layer: ``InfiniBand`` or ``Ethernet``.
        interfaces: names of the adapter's network interfaces.
    """

    adapter: str
    number: str
    state: str
    rate: str
    layer: str
    interfaces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Adapter and port in the notation of NCCL."""
        return f"{self.adapter}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether it carries messages."""
        return self.state == "ACTIVE"


def ports(*, root: Path = Path("/")) -> list[Port]:
    """Return the ports of all adapters.

    Args:
        root: the folder of /sys.
    """
    return [
        Port(
            adapter=adapter.name,
            number=port.name,
            state=text_of(port / "state").partition(":")[2].strip(),
            rate=text_of(port / "rate"),
            layer=text_of(port / "link_layer") or "InfiniBand",
            interfaces=tuple(one.name for one in folders_in(adapter / "device/net")),
        )
        for adapter in folders_in(root / "sys/class/infiniband")
        for port in folders_in(adapter / "ports")
    ]


def has_device_files(*, root: Path = Path("/")) -> bool:
    """Return whether programs can access the adapters; a container can lack the device files.

    Args:
        root: the folder of /dev.
    """
    return any((root / "dev/infiniband").glob("uverbs*"))


def judge(
    found: Sequence[Port], among: Sequence[Interface], *, backend: str | None, nodes: int, device_files: bool
) -> Part:
    """Return the rows, findings and facts of InfiniBand.

    Args:
        found: the ports.
        among: the network interfaces.
        backend: back end of the job's communication.
        nodes: number of nodes of the job.
        device_files: whether programs can access the adapters.
    """
    active = [port for port in found if port.is_active]
    findings = []
    if nodes > 1 and active:
        findings = _without_address(active, among, backend)
        if backend == "nccl" and not device_files:
            findings.append(_unreachable(active[0]))
    if active and (
        down := [port.name for port in found if not port.is_active and port.layer == "InfiniBand"]
    ):
        text = f"InfiniBand port(s) {', '.join(down)} are not active, others are. Check cables; see `ibstat`."
        findings.append(Finding(text=text, hurts=False))
    return Part(
        rows=tuple(
            ("infiniband" if i == 0 else "", f"{port.name} {port.state}, {port.rate}, {port.layer}")
            for i, port in enumerate(found)
        ),
        findings=tuple(findings),
        facts={"infiniband": [asdict(port) for port in found]},
    )


def _without_address(
    active: Sequence[Port], among: Sequence[Interface], backend: str | None
) -> list[Finding]:
    with_address = {one.name for one in among if one.up and one.addresses}
    if any(with_address & set(port.interfaces) for port in active):
        return []
    port = active[0]
    lacks = f"{port.interfaces[0]} has no IP address" if port.interfaces else "it has no network interface"
    state = f"{port.layer} port {port.name} is active ({port.rate}), but {lacks}"
    if backend == "nccl":
        text = (
            f"{state}. NCCL uses it without; the rendezvous and Gloo groups use another link. This is "
            "harmless unless communication between CPUs is slow."
        )
        return [Finding(text=text, hurts=False)]
    text = (
        f"{state}: {backend or 'Gloo'} uses a slower link. Request an IP address on it (IPoIB), then set "
        f"GLOO_SOCKET_IFNAME={port.interfaces[0] if port.interfaces else 'ib0'}."
    )
    return [Finding(text=text)]


def _unreachable(port: Port) -> Finding:
    text = (
        f"{port.layer} port {port.name} is active, but /dev/infiniband has no device files here: NCCL falls "
        "back to TCP. Start the container with --device=/dev/infiniband and --ulimit memlock=-1."
    )
    return Finding(text=text)
