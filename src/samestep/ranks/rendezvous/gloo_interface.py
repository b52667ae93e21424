"""Selects the network interface that Gloo uses between nodes: the one on the route to rank 0.

By default, Gloo takes the interface to which this host's name resolves. That may be loopback (Debian writes
127.0.1.1), none at all, or another network than that of the rendezvous.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from socket import gethostname, if_nameindex

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import DetectionError
from samestep.base.machine.interfaces import (
    Interface,
    addresses_here,
    carrier,
    default_interface,
    interfaces,
    of_address,
    source_towards,
)
from samestep.launchers.detect import LOOPBACK
from samestep.ranks.rendezvous.endpoint import resolve

IFNAME = "GLOO_SOCKET_IFNAME"
"""Gloo's variable for the interface; a value that the user has set takes precedence."""
_PATIENCE_S = 5.0  # seconds to wait for the name server: a guess
_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class GlooInterface:
    """Interface by which messages leave this host."""

    name: str  # name of the interface; empty if there is none
    why: str  # reason for the choice
    must_set: bool  # whether Gloo's variable has to be set, because Gloo would take another interface


def own_address() -> str | None:
    """Return the address to which this host's name resolves; None if it does not resolve."""
    try:
        return resolve(gethostname(), timeout_s=_PATIENCE_S)
    except DetectionError:
        return None


def is_own(address: str) -> bool:
    """Return whether an IP address is one of this host's: Debian's 127.0.1.1 is, but no interface has it."""
    is_here = of_address(address, interfaces(addresses_here())) is not None
    return is_here or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address_towards(master: str) -> str | None:
    """Return the address by which the other nodes reach this one; None if all ranks are on this host.

    `master` is the host or address of rank 0.
    """
    if master in LOOPBACK:
        return None
    source = source_towards(resolve(master))
    used, _ = _used(interfaces(addresses_here()), source, own_address())
    if used is None:
        return None
    return source if source in used.addresses else next(iter(used.addresses), None)


def interface_to(master: str, environment: Environment) -> GlooInterface:
    """Return the interface for Gloo's messages in a job of several nodes.

    `master` is the host or address of rank 0.
    """
    named = environment.get(IFNAME, "")
    if named or master in LOOPBACK:  # several "nodes" of one host
        return GlooInterface(named, IFNAME, must_set=False)
    among, host_address = interfaces(addresses_here()), own_address()
    used, why = _used(among, source_towards(resolve(master)), host_address)
    if used is None:
        return GlooInterface("", "", must_set=False)
    return GlooInterface(used.name, why, must_set=used != of_address(host_address, among))


def _used(
    among: Sequence[Interface], source: str | None, host_address: str | None
) -> tuple[Interface | None, str]:
    return carrier(among, named="", source=source, by_host_name=host_address, default=default_interface())


def loopback_only(environment: Environment) -> dict[str, str]:
    """Return the variable that restricts Gloo to loopback, for ranks that share a host.

    A value that the user has set takes precedence.
    """
    has_loopback = any(name == _LOOPBACK for _, name in if_nameindex())
    return {IFNAME: _LOOPBACK} if has_loopback and not environment.get(IFNAME) else {}


def use_interface_to(master: str) -> GlooInterface:
    """Make Gloo use the interface on the route to `master`, in this process and those it starts later."""
    interface = interface_to(master, env.snapshot())
    if interface.must_set:
        env.export({IFNAME: interface.name})
    return interface
