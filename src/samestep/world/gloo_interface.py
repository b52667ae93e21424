"""The network interface that Gloo uses between nodes: the one on the way to rank 0.

Gloo by itself takes the interface that this host's name leads to. That may be loopback (Debian writes
127.0.1.1), none at all, or another network than the one on which the ranks meet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from socket import gethostname, if_nameindex

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import DetectionError
from samestep.base.interfaces import (
    Interface,
    addresses_here,
    carrier,
    default_interface,
    interfaces,
    of_address,
    source_towards,
)
from samestep.world.detect import LOOPBACK
from samestep.world.rendezvous import resolve

IFNAME = "GLOO_SOCKET_IFNAME"
"""Gloo's variable for it; what the user says there counts."""
_PATIENCE_S = 5.0
_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Way:
    """By which interface messages leave this host.

    Args:
        name: of the interface; empty where there is none.
        why: it is that one.
        is_told: whether Gloo has to be told, because it would take another.
    """

    name: str
    why: str
    is_told: bool


def own_address() -> str | None:
    """Return the address that this host's name has; None where it has none."""
    try:
        return resolve(gethostname(), timeout_s=_PATIENCE_S)
    except DetectionError:
        return None


def is_own(address: str) -> bool:
    """Return whether an IP address is one of this host's."""
    return of_address(address, interfaces(addresses_here())) is not None


def address_towards(master: str) -> str | None:
    """Return the address by which the other nodes reach this one; None where all are on this host.

    Args:
        master: host or address of rank 0, which is known here.
    """
    if master in LOOPBACK:
        return None
    source = source_towards(resolve(master))
    used, _ = _used(interfaces(addresses_here()), source, own_address())
    if used is None:
        return None
    return source if source in used.addresses else next(iter(used.addresses), None)


def way_to(master: str, environment: Environment) -> Way:
    """Return by which interface Gloo's messages are to go in a job of several nodes.

    Args:
        master: host or address of rank 0, which is known here.
        environment: of this process.
    """
    named = environment.get(IFNAME, "")
    if named or master in LOOPBACK:  # several "nodes" of one host
        return Way(named, IFNAME, is_told=False)
    among, own = interfaces(addresses_here()), own_address()
    used, why = _used(among, source_towards(resolve(master)), own)
    if used is None:
        return Way("", "", is_told=False)
    return Way(used.name, why, is_told=used != of_address(own, among))


def _used(among: Sequence[Interface], source: str | None, own: str | None) -> tuple[Interface | None, str]:
    return carrier(among, named="", source=source, own=own, default=default_interface())


def loopback_only(environment: Environment) -> dict[str, str]:
    """Return the variable by which Gloo listens on loopback alone, for ranks that share a host.

    Args:
        environment: of this process; what the user says there counts.
    """
    has_loopback = any(name == _LOOPBACK for _, name in if_nameindex())
    return {IFNAME: _LOOPBACK} if has_loopback and not environment.get(IFNAME) else {}


def use_way_to(master: str) -> Way:
    """Have Gloo use the interface on the way to `master`, here and in processes started from now on."""
    way = way_to(master, env.snapshot())
    if way.is_told:
        env.export({IFNAME: way.name})
    return way
