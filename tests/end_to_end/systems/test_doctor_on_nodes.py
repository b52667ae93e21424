"""The doctor reports faults of nodes that have their own addresses and links."""

import json
import sys

import pytest

from support.commands import finish

DOCTOR = (sys.executable, "-m", "samestep", "doctor")
RATE = 0.1e9 / 8


def on_two_nodes(nodes, folder, *flags, **changes):
    """Run the doctor as one rank on each of two nodes; return how both ended."""
    master = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", **changes}
    other = nodes.start("node1", *DOCTOR, *flags, folder=folder, RANK="1", **master)
    return nodes.run("node0", *DOCTOR, *flags, folder=folder, RANK="0", **master), finish(other)


@pytest.mark.long
def test_a_slow_link_is_measured_and_hurts(nodes, tmp_path):
    with nodes.limited("100mbit"):
        main, other = on_two_nodes(nodes, tmp_path, "--json")
    record = json.loads(main.out)

    assert [rank["host"] for rank in record["ranks"]] == ["node0", "node1"]
    assert [rank["interface"] for rank in record["ranks"]] == ["eth0", "eth0"]
    (link,) = record["links"]
    for speed in (link["there"], link["back"]):
        assert 0.5 * RATE < speed < 1.2 * RATE
    (text,) = [one["text"] for one in record["findings"] if "over TCP" in one["text"]]
    assert "0.01" in text
    assert (main.code, other.code, other.out) == (1, 1, "")


def test_nodes_that_cannot_connect_by_gloos_interface_are_reported(nodes, tmp_path):
    """They connect to rank 0's store, and Gloo has to use loopback: joining would hang for half an hour."""
    main, other = on_two_nodes(nodes, tmp_path, "--no-devices", GLOO_SOCKET_IFNAME="lo")

    assert (
        "GLOO_SOCKET_IFNAME=lo is loopback, which reaches this host only, and the job has 2 nodes" in main.out
    )
    assert "1 of 1 pairs of ranks cannot reach each other: rank 0 (node0) to rank 1 (node1)" in main.out
    assert (main.code, other.code) == (1, 1)
