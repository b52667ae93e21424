"""Which interface carries the messages, and when that is the wrong one."""

import socket

from samestep.doctor.network import (
    Interface,
    carrier,
    default_interface,
    interfaces,
    judge,
    source_towards,
)
from support import trees

ETH = Interface(name="eth0", up=True, addresses=("10.0.0.2",), mbits=1000, mtu=1500)
IB = Interface(name="ib0", up=True, addresses=("10.1.0.2",), mbits=100_000, mtu=2044)
LO = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1",))


def texts(part):
    return [finding.text for finding in part.findings if finding.hurts]


def test_interfaces_are_read_from_sysfs(tmp_path):
    files = {
        **trees.loopback(),
        **trees.interface("eth0"),
        **trees.interface("eth1", state="down", speed="-1"),
    }
    root = trees.planted(tmp_path, {**files, "sys/class/net/bonding_masters": "bond0"})
    given = {"eth0": ["10.0.0.2", "fe80::1%eth0", "00:11:22:33:44:55"], "lo": ["127.0.0.1"]}

    lo = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1",), mtu=65536)
    eth0 = Interface(name="eth0", up=True, addresses=("10.0.0.2",), mbits=1000, mtu=1500)
    eth1 = Interface(name="eth1", up=False, mtu=1500)
    assert interfaces(given, root=root) == [eth0, eth1, lo]


def test_a_machine_without_sysfs_has_none(tmp_path):
    assert interfaces({}, root=tmp_path) == []
    assert default_interface(root=tmp_path) is None


def test_the_default_route_is_that_of_the_least_metric(tmp_path):
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    slow, fast = ("wlan0 00000000 0 3 0 0 600 0 0 0 0", "eth0 00000000 0 3 0 0 100 0 0 0 0")
    root = trees.planted(
        tmp_path, {"proc/net/route": "\n".join((head, slow, fast, "eth1 000200C0 0 1 0 0 0 0"))}
    )
    assert default_interface(root=root) == "eth0"


def test_what_gloo_is_told_carries_before_the_route_and_the_route_before_the_default():
    among = [ETH, IB, LO]
    assert carrier(among, named="ib0,eth0", source="10.0.0.2", default="eth0")[0] == IB
    assert carrier(among, named="", source="10.1.0.2", default="eth0") == (IB, "route to rank 0")
    assert carrier(among, named="nonsense0", source="127.0.0.1", default="eth0") == (ETH, "default route")
    assert carrier([LO, IB], named="", source=None, default=None)[0] == IB
    assert carrier([LO], named="", source=None, default=None)[0] is None


def test_a_much_faster_interface_beside_the_one_in_use_hurts_between_nodes():
    (text,) = texts(judge([ETH, IB, LO], ETH, "route to rank 0", nodes=2))
    assert "GLOO_SOCKET_IFNAME=ib0" in text
    assert "1 Gbit/s" in text
    assert "100 Gbit/s" in text
    assert texts(judge([ETH, IB, LO], ETH, "route to rank 0", nodes=1)) == []
    assert texts(judge([ETH, IB, LO], IB, "route to rank 0", nodes=2)) == []


def test_no_interface_or_one_that_is_down_hurts_between_nodes():
    down = Interface(name="eth0", up=False, addresses=("10.0.0.2",))
    assert "None" not in texts(judge([LO], None, "", nodes=2))[0]
    assert "cannot be reached" in texts(judge([LO], None, "", nodes=2))[0]
    assert "eth0, which carries" in texts(judge([down, LO], down, "GLOO_SOCKET_IFNAME", nodes=2))[0]
    assert texts(judge([LO], None, "", nodes=1)) == []


def test_the_source_towards_an_address_is_found_without_sending():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        assert source_towards("127.0.0.1") == "127.0.0.1"
        try:
            arrived = receiver.recv(1)
        except BlockingIOError:
            arrived = b""
        assert arrived == b""
