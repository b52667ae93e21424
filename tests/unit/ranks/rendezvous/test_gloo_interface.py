"""The interface of Gloo is set if its default is not the one of the route to rank 0."""

import pytest

from samestep.base import env
from samestep.base.machine.interfaces import Interface
from samestep.ranks.rendezvous import gloo_interface
from samestep.ranks.rendezvous.gloo_interface import (
    IFNAME,
    GlooInterface,
    address_towards,
    interface_to,
    is_own,
    use_interface_to,
)

ETH = Interface(name="eth0", up=True, addresses=("10.0.0.2",))
IB = Interface(name="ib0", up=True, addresses=("10.1.0.2", "fd00::2"))
LO = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1", "::1"))


@pytest.fixture
def host(monkeypatch):
    """Return a function that sets the address of this host's name and the source of the route to rank 0."""

    def set_addresses(*, own, source):
        monkeypatch.setattr(gloo_interface, "interfaces", lambda _: [ETH, IB, LO])
        monkeypatch.setattr(gloo_interface, "own_address", lambda: own)
        monkeypatch.setattr(gloo_interface, "source_towards", lambda _: source)
        monkeypatch.setattr(gloo_interface, "default_interface", lambda: "eth0")
        monkeypatch.setattr(gloo_interface, "resolve", lambda host: host)

    return set_addresses


@pytest.mark.parametrize(
    ("own", "source", "expected"),
    [
        ("10.0.0.2", "10.0.0.2", GlooInterface("eth0", "route to rank 0", must_set=False)),
        ("10.0.0.2", "10.1.0.2", GlooInterface("ib0", "route to rank 0", must_set=True)),
        ("10.1.0.2", "fd00::2", GlooInterface("ib0", "route to rank 0", must_set=False)),
        ("127.0.1.1", "10.0.0.2", GlooInterface("eth0", "route to rank 0", must_set=True)),
        (None, "10.0.0.2", GlooInterface("eth0", "route to rank 0", must_set=True)),
        ("10.1.0.2", "127.0.0.1", GlooInterface("ib0", "this host's name", must_set=False)),
        ("127.0.1.1", "127.0.0.1", GlooInterface("eth0", "default route", must_set=True)),
    ],
)
def test_the_interface_of_the_route_to_rank_0_is_set_if_it_is_not_gloos_default(host, own, source, expected):
    host(own=own, source=source)
    assert interface_to("node0", {}) == expected


def test_several_nodes_on_one_host_need_no_interface(host):
    host(own="127.0.1.1", source="127.0.0.1")
    assert not interface_to("localhost", {}).must_set


@pytest.mark.parametrize(
    ("own", "source", "address"),
    [
        ("10.0.0.2", "10.1.0.2", "10.1.0.2"),
        ("127.0.1.1", "fd00::2", "fd00::2"),
        ("10.1.0.2", "127.0.0.1", "10.1.0.2"),
        ("127.0.1.1", "127.0.0.1", "10.0.0.2"),
    ],
)
def test_the_address_for_other_hosts_is_that_of_the_same_interface(host, own, source, address):
    host(own=own, source=source)
    assert address_towards("node0") == address
    assert address_towards("localhost") is None
    assert is_own(address)
    assert is_own("127.0.1.1")  # Debian's for this host's name, which no interface has
    assert not is_own("10.2.0.2")


def test_an_interface_set_by_the_user_is_kept(host, monkeypatch):
    host(own="127.0.1.1", source="10.0.0.2")
    exported = {}
    monkeypatch.setattr(env, "export", exported.update)

    monkeypatch.setattr(env, "snapshot", lambda: {IFNAME: "ib0"})
    assert use_interface_to("node0") == GlooInterface("ib0", IFNAME, must_set=False)
    assert exported == {}

    monkeypatch.setattr(env, "snapshot", dict)
    use_interface_to("node0")
    assert exported == {IFNAME: "eth0"}
