"""torchrun and samestep's own launcher, one on each of two nodes."""

import sys

import pytest

from support.commands import finish
from support.launches import DIES_ONCE, JOIN, MESSAGES, OUTPUT_OF_TWO, PLACE, RUN, placed, places
from support.tiers import long_param

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO = ("node0", "node0", "node1", "node1")


def on_both(nodes, command):
    """Run a launcher on each of two nodes; return how the first and the second ended."""
    started = [nodes.start(f"node{i}", *(str(word).format(i=i) for word in command)) for i in range(2)]
    return [finish(process) for process in started]


@pytest.mark.long
def test_torch_distributed_launch_passes_the_local_rank(nodes):
    launch = (sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", "--nproc-per-node=2")
    done = nodes.run("node0", *launch, "-m", "samestep", "run", *PLACE)

    assert done.code == 0, done.err
    assert places(done.out)[0] == placed("node0", "node0")


def test_torchruns_workers_on_two_nodes_have_their_places(nodes):
    flags = ("--nnodes=2", "--node-rank={i}", "--nproc-per-node=2", "--master-addr=node0")
    both = on_both(nodes, (*TORCHRUN, *flags, "--master-port=29400", "-m", "samestep", "run", *PLACE))

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    told, points = places("".join(done.out for done in both))
    assert told == placed(*TWO)
    assert points == {"node0:29400"}


@pytest.mark.long
def test_torchruns_workers_on_two_nodes_send_messages(nodes):
    flags = ("--nnodes=2", "--node-rank={i}", "--nproc-per-node=1", "--master-addr=node0")
    both = on_both(nodes, (*TORCHRUN, *flags, MESSAGES))

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert both[0].out.splitlines() == OUTPUT_OF_TWO
    assert both[1].out == ""


@pytest.mark.long
def test_a_worker_that_is_killed_under_torchrun_on_two_nodes_is_restarted(nodes, tmp_path):
    """Torchrun's agents keep the store of the earlier ranks, whose addresses are outdated."""
    script = tmp_path / "dies_once.py"
    script.write_text(DIES_ONCE)
    meet = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--max-restarts=2")
    command = (*TORCHRUN, *meet, "--nproc-per-node=2", script, tmp_path / "died")
    both = on_both(nodes, command)

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert "".join(done.out for done in both).splitlines() == ["6.0 after a restart"]


def with_name_on_loopback(nodes, folder, command):
    """Return a command that finds its node's own name at 127.0.1.1, where Debian's installer puts it."""
    for node in nodes.names:
        (folder / f"hosts-{node[-1]}").write_text(nodes.hosts(**{node: "127.0.1.1"}))
    there = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", there, folder / "hosts-{i}", *command)


STATIC, C10D = ("--node-rank", "{i}", "--master-addr"), ("--rdzv-backend", "c10d", "--rdzv-endpoint")


@pytest.mark.parametrize(
    ("rendezvous", "named"),
    [
        ((*STATIC, "node0"), False),
        long_param((*STATIC, "node0-ipv6"), True),
        long_param((*C10D, "[fd77::1]"), False),
        ((*C10D, "node0"), False),
    ],
    ids=["by name", "by name of IPv6", "by address of IPv6", "by name of a node"],
)
def test_two_launchers_of_samestep_start_one_group_on_two_nodes(nodes, tmp_path, rendezvous, named):
    """Also if each node's own name resolves to loopback, where Gloo would listen by itself."""
    script = tmp_path / "joined.py"
    script.write_text(JOIN)
    command = (*RUN, "--nnodes", 2, *rendezvous, "--nproc-per-node", 2, script)
    both = on_both(nodes, command if named else with_name_on_loopback(nodes, tmp_path, command))

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert sorted("".join(done.out for done in both).splitlines()) == [
        f"rank {r} of 4 (local rank {r % 2} of 2 on node {r // 2} of 2) 10" for r in range(4)
    ]
    assert "samestep: cpu, gloo over eth0\n" in both[0].err + both[1].err
    for done in both:
        assert any("Gloo" in line and "eth0" in line for line in done.err.splitlines()) != named


@pytest.mark.parametrize("number", [0, long_param(1)])
def test_launchers_with_the_same_node_rank_all_report_the_error(nodes, number):
    flags = ("--nnodes", 3, "--node-rank", number, "--master-addr", "node0", "--nproc-per-node", 1)
    third = (
        nodes.start("node0", *RUN, "--nnodes", 3, "--node-rank", 0, *flags[4:], *PLACE) if number else None
    )
    both = on_both(nodes, (*RUN, *flags, *PLACE))
    ended = [*both, *([finish(third)] if third else [])]

    assert [done.code for done in ended] == [2] * len(ended), [done.err for done in ended]
    for done in ended:
        assert f"node {number} of 3, on node" in done.err
        assert "Traceback" not in done.err


def test_an_unresolvable_rendezvous_host_is_an_error(nodes):
    flags = ("--nnodes", 2, "--node-rank", 1, "--master-addr", "nowhere.invalid")
    done = nodes.run("node0", *RUN, *flags, *PLACE)

    assert done.code == 2
    assert "nowhere.invalid, the host of rank 0, cannot be resolved on node0" in done.err
