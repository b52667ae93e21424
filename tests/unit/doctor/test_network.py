"""A slow, missing or inactive network interface is a problem between nodes."""

import os
import socket
import subprocess
import sys

from samestep.base.machine.interfaces import Interface
from samestep.doctor import network
from samestep.doctor.network import Network, interfaces

ETH = Interface(name="eth0", up=True, addresses=("10.0.0.2",), mbits=1000, mtu=1500)
IB = Interface(name="ib0", up=True, addresses=("10.1.0.2",), mbits=100_000, mtu=2044)
LO = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1",))


def texts(among, used, reason, *, nodes):
    result = interfaces(Network(interfaces=among, used=used, reason=reason, nodes=nodes))
    return [finding.text for finding in result.findings if finding.hurts]


def test_an_unused_much_faster_interface_is_a_problem_between_nodes():
    (text,) = texts([ETH, IB, LO], ETH, "route to rank 0", nodes=2)
    assert "GLOO_SOCKET_IFNAME=ib0" in text
    assert "1 Gbit/s" in text
    assert "100 Gbit/s" in text
    assert texts([ETH, IB, LO], ETH, "route to rank 0", nodes=1) == []
    assert texts([ETH, IB, LO], IB, "route to rank 0", nodes=2) == []


def test_a_missing_or_inactive_interface_is_a_problem_between_nodes():
    down = Interface(name="eth0", up=False, addresses=("10.0.0.2",))
    assert "None" not in texts([LO], None, "", nodes=2)[0]
    assert "cannot be reached" in texts([LO], None, "", nodes=2)[0]
    assert "eth0, which carries" in texts([down, LO], down, "GLOO_SOCKET_IFNAME", nodes=2)[0]
    assert texts([LO], None, "", nodes=1) == []


def test_a_listener_is_found_unless_it_is_of_this_job():
    code = (
        "import socket, time; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); time.sleep(60)"
    )
    program = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        number = int(program.stdout.readline())
        assert network.listener_at(number, ignored={os.getpid()}) == program.pid
        assert network.listener_at(number, ignored=network.own_processes(is_rank=False)) is None
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def test_a_port_of_this_process_is_not_in_use_by_another():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert network.listener_at(server.getsockname()[1], ignored={os.getpid()}) is None
