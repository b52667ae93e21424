"""Checks the network interface that carries the messages between nodes, InfiniBand, and the rendezvous' port.

NCCL uses InfiniBand adapters directly; Gloo, torch's store and the bootstrap of NCCL need an IP address on
one of their network interfaces (IPoIB).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.machine import interfaces as machine_interfaces
from samestep.base.machine.interfaces import Interface
from samestep.base.machine.kernel_files import folders_in, text_of
from samestep.doctor.context import Context
from samestep.doctor.results import Finding, Result, note, problem, rows
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.gloo_interface import IFNAME, own_address

# Another interface is reported if it is at least so many times as fast.
_MUCH_FASTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of an InfiniBand adapter."""

    adapter: str  # the kernel's name of the adapter, such as ``mlx5_0``
    number: str  # number of the port, from 1
    state: str  # ``ACTIVE``, ``DOWN``, ``INIT``,
    rate: str  # rate as sysfs writes it, such as ``200 Gb/sec (4X HDR)``
    layer: str  # ``InfiniBand`` or ``Ethernet``
    interfaces: tuple[str, ...] = ()  # names of the adapter's network interfaces

    @property
    def name(self) -> str:
        """Adapter and port in the notation of NCCL."""
        return f"{self.adapter}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether it carries messages."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Network of this host, and the job that uses it."""

    interfaces: Sequence[Interface] = ()  # network interfaces of this host
    used: Interface | None = None  # the one that carries the messages between nodes
    reason: str = ""  # reason why it is that one
    ports: Sequence[Port] = ()  # InfiniBand ports
    device_files: bool = True  # whether programs can access the adapters; a container can lack them
    backend: str | None = None  # back end of the job's communication
    nodes: int = 1  # number of nodes of the job
    local_size: int = 1  # number of ranks on this host
    accelerators: int = 0  # number of accelerators that this process sees

    @property
    def active_ports(self) -> list[Port]:
        """InfiniBand ports that carry messages."""
        return [port for port in self.ports if port.is_active]


def read(context: Context) -> Network:
    """Return the network of this host."""
    root, place = context.root, context.place
    found = machine_interfaces.interfaces(machine_interfaces.addresses_here(), root=root)
    used, reason = machine_interfaces.carrier(
        found,
        named=context.environment.get(IFNAME, ""),
        source=_source_towards_master(context),
        by_host_name=own_address() if place.nodes > 1 else None,
        default=machine_interfaces.default_interface(root=root),
    )
    return Network(
        interfaces=found,
        used=used,
        reason=reason,
        ports=read_ports(root),
        device_files=has_device_files(root),
        backend=context.backend,
        nodes=place.nodes,
        local_size=place.local_size,
        accelerators=0 if context.devices is None else context.devices.count,
    )


def read_ports(root: Path = Path("/")) -> list[Port]:
    """Return the InfiniBand ports of all adapters, according to the folder of /sys in `root`."""
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


def has_device_files(root: Path = Path("/")) -> bool:
    """Return whether programs can access the adapters, according to the folder of /dev in `root`."""
    return any((root / "dev/infiniband").glob("uverbs*"))


def interfaces(network: Network) -> Result:
    """Check the interface that carries the messages between nodes."""
    used = network.used
    others = [one.describe() for one in network.interfaces if one != used and not one.loopback]
    text = "none with an address" if used is None else f"{used.describe()} ({network.reason})"
    return Result(
        rows=[("interface", text), *rows("others", others)],
        findings=[] if network.nodes == 1 else list(_between_nodes(network.interfaces, used)),
        facts={"interfaces": [asdict(one) for one in network.interfaces], "interface": used and used.name},
    )


def infiniband(network: Network) -> Result:
    """Check the InfiniBand ports."""
    shown = [f"{port.name} {port.state}, {port.rate}, {port.layer}" for port in network.ports]
    return Result(
        rows=rows("infiniband", shown),
        findings=list(_about_ports(network)),
        facts={"infiniband": [asdict(port) for port in network.ports]},
    )


def port(context: Context) -> Result:
    """Check on rank 0 that no other program of this user listens at the port of the rendezvous."""
    if context.master is None or not context.place.is_main:
        return Result()
    number = context.master[1]
    found = listener_at(number, own=own_processes(is_rank=context.place.size > 1))
    if found is None:
        return Result()
    text = f"Port {number} of the rendezvous is in use by process {found}. End it, or set MASTER_PORT."
    return Result(findings=[problem(text)])


def own_processes(*, is_rank: bool) -> set[int]:
    """Return the IDs of this process, its ancestors and descendants, and those that its launcher started."""
    import psutil

    this = psutil.Process()
    own = {this.pid}
    with suppress(psutil.Error):
        own |= {one.pid for one in (*this.children(recursive=True), *this.parents())}
        parent = this.parent()
        # Process 1 adopts any process; only if it started this rank, its children are the other ranks.
        if parent is not None and (parent.pid != 1 or is_rank):
            own |= {one.pid for one in parent.children(recursive=True)}
    return own


def listener_at(number: int, *, own: Collection[int]) -> int | None:
    """Return the ID of this user's process that listens at a port; None if there is none but `own`."""
    import psutil

    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == number and one.pid:
                return None if one.pid in own else int(one.pid)
    return None


def _source_towards_master(context: Context) -> str | None:
    try:
        if context.master is not None:
            address = endpoint.resolve(context.master[0], timeout_s=5.0)
            return machine_interfaces.source_towards(address)
    except UsageError:  # the context has a finding for it
        pass
    return None


def _between_nodes(among: Sequence[Interface], used: Interface | None) -> Iterator[Finding]:
    if used is None:
        yield problem(
            "No network interface but loopback is up and has an IP address: the other nodes cannot "
            "be reached. See `ip addr`."
        )
    elif not used.up:
        yield problem(f"{used.name}, which carries the messages to the other nodes, is down. See `ip addr`.")
    elif used.mbits:
        speeds = {one.name: one.mbits or 0 for one in among if one.up and one.addresses}
        faster = [name for name, mbits in speeds.items() if mbits >= _MUCH_FASTER * used.mbits]
        for name in faster[:1]:
            yield problem(
                f"Messages between the nodes use {used.name} ({used.mbits / 1000:g} Gbit/s), though "
                f"{name} ({speeds[name] / 1000:g} Gbit/s) is up and has an address. If the nodes reach each "
                f"other by it, set GLOO_SOCKET_IFNAME={name} and NCCL_SOCKET_IFNAME={name}."
            )


def _about_ports(network: Network) -> Iterator[Finding]:
    active, nccl = network.active_ports, network.backend == "nccl"
    if not active:
        return
    port = active[0]
    with_address = {one.name for one in network.interfaces if one.up and one.addresses}
    if network.nodes > 1 and not any(with_address & set(one.interfaces) for one in active):
        interface = port.interfaces[0] if port.interfaces else ""
        lacks = f"{interface} has no IP address" if interface else "it has no network interface"
        state = f"{port.layer} port {port.name} is active ({port.rate}), but {lacks}"
        if nccl:
            yield note(
                f"{state}. NCCL uses it without; the rendezvous and Gloo groups use another link. This is "
                "harmless unless communication between CPUs is slow."
            )
        else:
            yield problem(
                f"{state}: {network.backend or 'Gloo'} uses a slower link. Request an IP address on it "
                f"(IPoIB), then set GLOO_SOCKET_IFNAME={interface or 'ib0'}."
            )
    if network.nodes > 1 and nccl and not network.device_files:
        yield problem(
            f"{port.layer} port {port.name} is active, but /dev/infiniband has no device files here: NCCL "
            "falls back to TCP. Start the container with --device=/dev/infiniband and --ulimit memlock=-1."
        )
    down = [one.name for one in network.ports if not one.is_active and one.layer == "InfiniBand"]
    if down:
        yield note(
            f"InfiniBand port(s) {', '.join(down)} are not active, others are. Check cables; see `ibstat`."
        )
