"""Checks the network interface between nodes, InfiniBand, their settings, and the port of the rendezvous.

NCCL uses InfiniBand adapters directly; Gloo, torch's store and the bootstrap of NCCL need an IP address on
one of their network interfaces (IPoIB).

Each rule about settings of NCCL, Gloo and CUDA is a function of the variables and of the network. The names
are those of the documentation of NCCL and PyTorch.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine import interfaces as machine_interfaces
from samestep.base.machine.interfaces import Interface
from samestep.base.machine.kernel_files import folders_in, text_of
from samestep.doctor.context import Context, Finding, Result, note, problem, rows
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
    here = machine_interfaces.interfaces(machine_interfaces.addresses_here(), root=root)
    used, reason = machine_interfaces.carrier(
        here,
        named=context.environment.get(IFNAME, ""),
        source=_source_towards_master(context),
        by_host_name=own_address() if place.nodes > 1 else None,
        default=machine_interfaces.default_interface(root=root),
    )
    return Network(
        interfaces=here,
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
            interfaces=tuple(interface.name for interface in folders_in(adapter / "device/net")),
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
    rest = [
        interface.describe()
        for interface in network.interfaces
        if interface != used and not interface.loopback
    ]
    text = "none with an address" if used is None else f"{used.describe()} ({network.reason})"
    return Result(
        rows=[("interface", text), *rows("others", rest)],
        findings=[] if network.nodes == 1 else list(_between_nodes(network.interfaces, used)),
        facts={
            "interfaces": [asdict(interface) for interface in network.interfaces],
            "interface": used and used.name,
        },
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
    process = listener_at(number, ignored=own_processes(is_rank=context.place.size > 1))
    if process is None:
        return Result()
    text = f"Port {number} of the rendezvous is in use by process {process}. End it, or set MASTER_PORT."
    return Result(findings=[problem(text)])


def own_processes(*, is_rank: bool) -> set[int]:
    """Return the IDs of this process, its ancestors and descendants, and those that its launcher started."""
    import psutil

    this = psutil.Process()
    processes = {this.pid}
    with suppress(psutil.Error):
        processes |= {process.pid for process in (*this.children(recursive=True), *this.parents())}
        parent = this.parent()
        # Process 1 adopts any process; only if it started this rank, its children are the other ranks.
        if parent is not None and (parent.pid != 1 or is_rank):
            processes |= {process.pid for process in parent.children(recursive=True)}
    return processes


def listener_at(number: int, *, ignored: Collection[int]) -> int | None:
    """Return the ID of this user's process that listens at a port; None if there is none but `ignored`."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == number
                and connection.pid
            ):
                return None if connection.pid in ignored else int(connection.pid)
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
        speeds = {
            interface.name: interface.mbits or 0
            for interface in among
            if interface.up and interface.addresses
        }
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
    with_address = {
        interface.name for interface in network.interfaces if interface.up and interface.addresses
    }
    if network.nodes > 1 and not any(with_address & set(active_port.interfaces) for active_port in active):
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
    down = [
        inactive.name
        for inactive in network.ports
        if not inactive.is_active and inactive.layer == "InfiniBand"
    ]
    if down:
        yield note(
            f"InfiniBand port(s) {', '.join(down)} are not active, others are. Check cables; see `ibstat`."
        )


_OFF = {"", "0"}
_SHOWN = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TP_SOCKET", "CUDA_VISIBLE", "CUDA_LAUNCH", "RCCL_", "UCX_", "FI_")


def variables(env: Environment, network: Network) -> Result:
    """Return the variables that are set, and findings about those that are wrong here."""
    shown = [f"{name}={value}" for name, value in sorted(env.items()) if name.startswith(_SHOWN)]
    return Result(
        rows=rows("settings", shown),
        findings=[finding for rule in _RULES for finding in rule(env, network)],
        facts={"settings": shown},
    )


def _gloo_interface(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``GLOO_SOCKET_IFNAME``, a list of full names."""
    text = env.get("GLOO_SOCKET_IFNAME", "")
    by_name = {interface.name: interface for interface in network.interfaces}
    for name in [name.strip() for name in text.split(",") if name.strip()] if by_name else ():
        interface = by_name.get(name)
        if interface is None:
            yield problem(
                f"GLOO_SOCKET_IFNAME={text} names {name}, but this host has {_names(network.interfaces)}: "
                "Gloo fails to start. Set it to one of them, or unset it."
            )
        elif not interface.up or not interface.addresses:
            lacks = "is down" if not interface.up else "has no IP address"
            yield problem(f"GLOO_SOCKET_IFNAME={name}, but {name} {lacks}. Set it to another interface.")
        elif interface.loopback and network.nodes > 1:
            yield _loopback(f"GLOO_SOCKET_IFNAME={name}", network)


def _nccl_interface(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``NCCL_SOCKET_IFNAME``, a list of prefixes; ``=`` selects full names, ``^`` all other names."""
    text = env.get("NCCL_SOCKET_IFNAME", "")
    if not text or network.backend not in (None, "nccl") or not network.interfaces:
        return
    chosen = [interface for interface in network.interfaces if _matches(text, interface.name)]
    if not chosen:
        yield problem(
            f"NCCL_SOCKET_IFNAME={text} fits none of this host's interfaces "
            f"({_names(network.interfaces)}): NCCL fails to start. Set it to one of them, or unset it."
        )
    elif not any(interface.up and interface.addresses for interface in chosen):
        yield problem(
            f"NCCL_SOCKET_IFNAME={text} leaves {_names(chosen)}, none of which is up with an IP "
            "address. Set it to another interface."
        )
    elif all(interface.loopback for interface in chosen) and network.nodes > 1:
        yield _loopback(f"NCCL_SOCKET_IFNAME={text}", network)


def _infiniband_adapters(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``NCCL_IB_HCA``, a list like `_nccl_interface`'s, of adapters, each with or without a port."""
    text = env.get("NCCL_IB_HCA", "")
    if not text or not network.ports or network.nodes == 1 or network.backend not in (None, "nccl"):
        return
    fitting = [port for port in network.ports if _matches(text, port.adapter, port.name)]
    if not any(port.is_active for port in fitting):
        which = "none of" if not fitting else "no active one of"
        every = ", ".join(f"{port.name} {port.state}" for port in network.ports)
        yield problem(
            f"NCCL_IB_HCA={text} fits {which} the InfiniBand ports ({every}): NCCL falls back to TCP. "
            "Set it to an active one, or unset it."
        )


def _disabled_transports(env: Environment, network: Network) -> Iterator[Finding]:
    """Check for transports that are fast here, disabled for debugging or for another machine."""
    if network.backend not in (None, "nccl"):
        return
    several = network.accelerators > 1 or (network.accelerators and network.local_size > 1)
    p2p = _first(env, NCCL_P2P_DISABLE=_is_on, NCCL_P2P_LEVEL=lambda value: value in {"0", "LOC"})
    if several and p2p:
        yield problem(
            f"{p2p}: the GPUs of this host communicate through host memory, not NVLink or "
            "PCIe. Unset it, unless the copies between GPUs above arrive wrong."
        )
    shm = _first(env, NCCL_SHM_DISABLE=_is_on)
    if several and shm:
        yield problem(f"{shm}: GPUs of this host without a direct link use the network. Unset it.")
    tcp = _first(env, NCCL_IB_DISABLE=_is_on, NCCL_NET=lambda value: value == "Socket")
    if network.nodes > 1 and network.active_ports and tcp:
        port = network.active_ports[0]
        yield problem(f"{tcp}: NCCL uses TCP, though {port.name} is active ({port.rate}). Unset it.")


def _debugging(env: Environment, network: Network) -> Iterator[Finding]:
    """Check for settings that are for debugging and make every step slower."""
    if _is_on(env.get("CUDA_LAUNCH_BLOCKING", "")) and network.accelerators:
        yield problem("CUDA_LAUNCH_BLOCKING=1 makes the CPU wait for each kernel. Unset it for training.")
    if env.get("NCCL_DEBUG", "").upper() == "TRACE" and network.backend == "nccl":
        yield note("NCCL_DEBUG=TRACE writes a line for each call. Use WARN or INFO.")
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield note(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL compares the ranks before each collective, which costs time. "
            "Unset it for training."
        )


def _equal_pinning(env: Environment, network: Network) -> Iterator[Finding]:
    """Check OpenMP's pinning, which is the same for each rank and puts all of them on the same processors."""
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        value = env.get(name, "")
        explicit = any(character.isdigit() for character in value)
        if network.local_size > 1 and explicit and ("proclist" in value or name != "KMP_AFFINITY"):
            yield problem(
                f"{name}={value} is the same for all {network.local_size} ranks of this host: their "
                "threads share those processors. Unset it, and let the launcher bind the ranks."
            )


_RULES: Sequence[Callable[[Environment, Network], Iterator[Finding]]] = (
    _gloo_interface,
    _nccl_interface,
    _infiniband_adapters,
    _disabled_transports,
    _debugging,
    _equal_pinning,
)


def _matches(pattern: str, *names: str) -> bool:
    """Return whether one of `names` fits a list in NCCL's notation.

    >>> [_matches(p, "eth0") for p in ("eth", "=eth", "=eth0", "^docker,lo", "^eth", "^=eth")]
    [True, False, True, True, False, True]
    """
    excluding = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    whole = rest.startswith("=")
    words = [word.strip() for word in rest.removeprefix("=").split(",") if word.strip()]
    hit = any(name == word if whole else name.startswith(word) for word in words for name in names)
    return hit != excluding


def _first(env: Environment, **applies: Callable[[str], bool]) -> str:
    """Return ``NAME=VALUE`` of the first variable whose value applies; an empty text if none does."""
    return next((f"{name}={env[name]}" for name, test in applies.items() if test(env.get(name, ""))), "")


def _is_on(value: str) -> bool:
    return value not in _OFF


def _loopback(setting: str, network: Network) -> Finding:
    return problem(
        f"{setting} is loopback, which reaches this host only, and the job has {network.nodes} "
        "nodes. Set it to the interface between the nodes (see `ip addr`)."
    )


def _names(every: Sequence[Interface]) -> str:
    return ", ".join(interface.name for interface in every)
