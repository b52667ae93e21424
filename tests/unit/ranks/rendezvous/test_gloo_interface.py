"""Gloo is told which interface to use where it would take another than the one on the way to rank 0."""

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
    """Stand on a host whose name has an address, and from which a route leads to rank 0."""

    def stand(*, own, source):
        monkeypatch.setattr(gloo_interface, "interfaces", lambda _: [ETH, IB, LO])
        monkeypatch.setattr(gloo_interface, "own_address", lambda: own)
        monkeypatch.setattr(gloo_interface, "source_towards", lambda _: source)
        monkeypatch.setattr(gloo_interface, "default_interface", lambda: "eth0")
        monkeypatch.setattr(gloo_interface, "resolve", lambda host: host)

    return stand


@pytest.mark.parametrize(
    ("own", "source", "way"),
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
def test_the_way_to_rank_0_is_told_where_gloo_would_take_another(host, own, source, way):
    host(own=own, source=source)
    assert interface_to("node0", {}) == way


def test_several_nodes_of_one_host_need_no_interface(host):
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
def test_the_others_reach_this_host_by_its_address_on_that_way(host, own, source, address):
    host(own=own, source=source)
    assert address_towards("node0") == address
    assert address_towards("localhost") is None
    assert is_own(address)
    assert not is_own("10.2.0.2")


def test_what_the_user_says_counts(host, monkeypatch):
    host(own="127.0.1.1", source="10.0.0.2")
    told = {}
    monkeypatch.setattr(env, "export", told.update)

    monkeypatch.setattr(env, "snapshot", lambda: {IFNAME: "ib0"})
    assert use_interface_to("node0") == GlooInterface("ib0", IFNAME, must_set=False)
    assert told == {}

    monkeypatch.setattr(env, "snapshot", dict)
    use_interface_to("node0")
    assert told == {IFNAME: "eth0"}
