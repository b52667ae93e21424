"""Lists the network interfaces of this host and finds the one that carries messages between nodes."""

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.kernel_files import folders_in, number_of, text_of

_UP, _LOOPBACK = 0x1, 0x8
_DOWN = {"down", "lowerlayerdown", "notpresent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface."""

    name: str  # the system's name for it
    up: bool  # whether it carries messages
    loopback: bool = False  # whether it reaches this host only
    addresses: tuple[str, ...] = ()  # its IP addresses without link-local ones
    mbits: int | None = None  # its speed in Mbit/s; None where the driver does not report it
    mtu: int | None = None  # size of its largest packet in bytes; None where unknown

    def describe(self) -> str:
        """Return name, addresses and speed on one line."""
        speed = "" if self.mbits is None else f"{self.mbits / 1000:g} Gbit/s"
        mtu = "" if self.mtu is None else f"MTU {self.mtu}"
        state = "" if self.up else "down"
        parts = (" ".join((self.name, *self.addresses)), speed, mtu, state)
        return ", ".join(part for part in parts if part)


def interfaces(addresses: Mapping[str, Sequence[str]], *, root: Path = Path("/")) -> list[Interface]:
    """Return the interfaces that sysfs lists.

    `addresses` are the IP addresses by interface, which sysfs does not list; `root` contains ``sys``.
    """
    listed = []
    for folder in folders_in(root / "sys/class/net"):
        flags = number_of(folder / "flags") or 0
        speed = number_of(folder / "speed")
        listed.append(
            Interface(
                name=folder.name,
                up=bool(flags & _UP) and text_of(folder / "operstate") not in _DOWN,
                loopback=bool(flags & _LOOPBACK),
                addresses=tuple(filter(_is_global, addresses.get(folder.name, ()))),
                mbits=speed if speed is not None and speed > 0 else None,
                mtu=number_of(folder / "mtu"),
            )
        )
    return listed


def addresses_here() -> dict[str, list[str]]:
    """Return the IP addresses of this host's interfaces."""
    import psutil

    families = {socket.AF_INET, socket.AF_INET6}
    return {
        name: [address.address for address in every if address.family in families]
        for name, every in psutil.net_if_addrs().items()
    }


def source_towards(address: str) -> str | None:
    """Return this host's source address for packets to `address`; None without a route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def default_interface(*, root: Path = Path("/")) -> str | None:
    """Return the interface of the default route of IPv4 with the least metric."""
    routes = [line.split() for line in text_of(root / "proc/net/route").splitlines()[1:]]
    defaults = [(int(route[6]), route[0]) for route in routes if len(route) > 7 and route[1] == "00000000"]
    return min(defaults)[1] if defaults else None


def of_address(address: str | None, among: Sequence[Interface]) -> Interface | None:
    """Return the interface that has an address."""
    return next((interface for interface in among if address in interface.addresses), None)


def carrier(
    among: Sequence[Interface],
    *,
    named: str,
    source: str | None,
    by_host_name: str | None,
    default: str | None,
) -> tuple[Interface | None, str]:
    """Return the interface that carries the messages between nodes, and the reason for this choice.

    Args:
        among: the interfaces of this host.
        named: value of ``GLOO_SOCKET_IFNAME``; the first of several names counts.
        source: this host's source address for packets to rank 0.
        by_host_name: the address that this host's name resolves to.
        default: the interface of the default route.
    """
    first = named.partition(",")[0].strip()
    by_name = {interface.name: interface for interface in among}
    if first in by_name:
        return by_name[first], "GLOO_SOCKET_IFNAME"
    for address, why in ((source, "route to rank 0"), (by_host_name, "this host's name")):
        has_it = of_address(address, among)
        if has_it is not None and not has_it.loopback:
            return has_it, why
    if default in by_name:
        return by_name[default], "default route"
    useful = (
        interface for interface in among if interface.up and interface.addresses and not interface.loopback
    )
    return next(useful, None), "the first"


def _is_global(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (parsed.is_link_local and parsed.version == 6)
