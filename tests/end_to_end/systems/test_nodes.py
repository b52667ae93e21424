"""The simulated nodes of other tests have their own names, addresses, memory and links."""

import sys

from support.commands import finish
from support.launches import RUN

CALL = "import socket; socket.create_connection(('node3', 7001), timeout=0.3)"
KIND = """
import samestep
from samestep.ranks.collectives.direct import low_latency
with samestep.join() as world:
    print(type(low_latency(world)).__name__)
"""


def test_a_node_has_a_name_an_address_and_no_default_route(nodes):
    done = nodes.run("node2", "sh", "-c", "hostname; getent hosts node2; ls /sys/class/net; ip route")

    name, known, *devices, route = done.out.splitlines()
    assert name == "node2"
    assert known.split() == [nodes.addresses["node2"], "node2"]
    assert set(devices) == {"lo", "eth0"}
    assert route.startswith("10.77.0.0/24 dev eth0")
    assert "default" not in done.out


def test_nodes_share_no_memory(nodes):
    nodes.run("node0", "touch", "/dev/shm/here")
    assert nodes.run("node0", "ls", "/dev/shm").out == "here\n"
    assert nodes.run("node1", "ls", "/dev/shm").out == ""


def test_ranks_of_several_nodes_use_the_network(nodes, tmp_path):
    """Although nodes share process ids, by which a rank reaches the files that another one has open."""
    (tmp_path / "kind.py").write_text(KIND)
    flags = ("--mode", "native", "--nnodes", 2, "--master-addr", "node0", "--nproc-per-node", 1)
    started = [
        nodes.start(f"node{i}", *RUN, *flags, "--node-rank", i, tmp_path / "kind.py") for i in range(2)
    ]
    ended = [finish(process) for process in started]

    assert [done.code for done in ended] == [0, 0], ended
    assert ["DirectWorld" in done.out for done in ended] == [True, True]


def test_a_node_can_be_disconnected_and_reconnected(nodes):
    def reached():
        done = nodes.run("node0", sys.executable, "-c", CALL)
        return done.err.splitlines()[-1].partition(":")[0]

    assert reached() == "ConnectionRefusedError"
    nodes.disconnect("node3")
    try:
        assert reached() == "TimeoutError"
    finally:
        nodes.reconnect("node3")
    assert reached() == "ConnectionRefusedError"


def test_slurm_runs_tasks_on_each_node(slurm):
    done = slurm.run("srun", "--nodes=4", "--label", "hostname")
    assert sorted(done.out.splitlines()) == [f"{i}: node{i}" for i in range(4)]
