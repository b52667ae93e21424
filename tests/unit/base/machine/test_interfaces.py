"""The interfaces of a host are listed, and the one that carries the messages is found."""

import socket

from samestep.base.machine.interfaces import Interface, carrier, default_interface, interfaces, source_towards
from support import trees

ETH = Interface(name="eth0", up=True, addresses=("10.0.0.2",), mbits=1000, mtu=1500)
IB = Interface(name="ib0", up=True, addresses=("10.1.0.2",), mbits=100_000, mtu=2044)
LO = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1",))


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


def test_a_machine_without_sysfs_has_no_interfaces(tmp_path):
    assert interfaces({}, root=tmp_path) == []
    assert default_interface(root=tmp_path) is None


def test_the_default_route_is_the_one_with_the_smallest_metric(tmp_path):
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    slow, fast = ("wlan0 00000000 0 3 0 0 600 0 0 0 0", "eth0 00000000 0 3 0 0 100 0 0 0 0")
    root = trees.planted(
        tmp_path, {"proc/net/route": "\n".join((head, slow, fast, "eth1 000200C0 0 1 0 0 0 0"))}
    )
    assert default_interface(root=root) == "eth0"


def test_the_carrier_is_that_of_gloos_variable_else_of_the_route_else_of_the_name_else_the_default():
    among, default = [ETH, IB, LO], "eth0"
    assert carrier(among, named="ib0,eth0", source="10.0.0.2", by_host_name=None, default=default)[0] == IB
    by_route = carrier(among, named="", source="10.1.0.2", by_host_name="10.0.0.2", default=default)
    assert by_route == (IB, "route to rank 0")
    by_name = carrier(among, named="", source="127.0.0.1", by_host_name="10.1.0.2", default=default)
    assert by_name == (IB, "this host's name")
    by_default = carrier(
        among, named="nonsense0", source="127.0.0.1", by_host_name="127.0.0.1", default=default
    )
    assert by_default == (ETH, "default route")
    assert carrier([LO, IB], named="", source=None, by_host_name="127.0.1.1", default=None)[0] == IB
    assert carrier([LO], named="", source=None, by_host_name=None, default=None)[0] is None


def test_the_source_address_towards_a_host_is_found_without_sending():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        assert source_towards("127.0.0.1") == "127.0.0.1"
        try:
            arrived = receiver.recv(1)
        except BlockingIOError:
            arrived = b""
        assert arrived == b""
