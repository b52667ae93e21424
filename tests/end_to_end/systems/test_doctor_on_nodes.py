"""The doctor reports faults of nodes that have their own addresses."""

import sys

from support.commands import finish

DOCTOR = (sys.executable, "-m", "samestep", "doctor")


def on_two_nodes(nodes, folder, *flags, **changes):
    """Run the doctor as one rank on each of two nodes; return how both ended."""
    master = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", **changes}
    other = nodes.start("node1", *DOCTOR, *flags, folder=folder, RANK="1", **master)
    return nodes.run("node0", *DOCTOR, *flags, folder=folder, RANK="0", **master), finish(other)


def test_nodes_that_cannot_connect_by_gloos_interface_are_reported(nodes, tmp_path):
    """They connect to rank 0's store, and Gloo has to use loopback: joining would hang for half an hour."""
    main, other = on_two_nodes(nodes, tmp_path, "--no-devices", GLOO_SOCKET_IFNAME="lo")

    assert (
        "GLOO_SOCKET_IFNAME=lo is loopback, which reaches this host only, and the job has 2 nodes" in main.out
    )
    assert (main.code, other.code) == (1, 1)
