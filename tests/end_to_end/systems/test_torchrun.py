"""torchrun and samestep's own launcher, one on each of two nodes."""

import sys

import pytest

from support.commands import finish
from support.launches import JOIN, RUN, TELL, placed, places

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO = ("node0", "node0", "node1", "node1")


def on_both(nodes, command):
    """Run a launcher on each of two nodes; return how the first and the second ended."""
    started = [nodes.start(f"node{i}", *(str(word).format(i=i) for word in command)) for i in range(2)]
    return [finish(process) for process in started]


def test_torchruns_workers_on_one_node(nodes):
    done = nodes.run("node0", *TORCHRUN, "--nproc-per-node=2", "-m", "samestep", "run", *TELL)

    assert done.code == 0, done.err
    assert places(done.out)[0] == placed("node0", "node0")


def test_torch_distributed_launch_hands_over_a_local_rank(nodes):
    launch = (sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", "--nproc-per-node=2")
    done = nodes.run("node0", *launch, "-m", "samestep", "run", *TELL)

    assert done.code == 0, done.err
    assert places(done.out)[0] == placed("node0", "node0")


def test_torchruns_workers_on_two_nodes(nodes):
    flags = ("--nnodes=2", "--node-rank={i}", "--nproc-per-node=2", "--master-addr=node0")
    both = on_both(nodes, (*TORCHRUN, *flags, "--master-port=29400", "-m", "samestep", "run", *TELL))

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    told, points = places("".join(done.out for done in both))
    assert told == placed(*TWO)
    assert points == {"node0:29400"}


def test_our_own_launchers_on_two_nodes(nodes, tmp_path):
    script = tmp_path / "joined.py"
    script.write_text(JOIN)
    flags = ("--nnodes", 2, "--node-rank", "{i}", "--master-addr", "node0", "--nproc-per-node", 2)
    both = on_both(nodes, (*RUN, *flags, script))

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert sorted("".join(done.out for done in both).splitlines()) == [
        f"rank {r} of 4 (local rank {r % 2} of 2 on node {r // 2} of 2) 10" for r in range(4)
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_two_launchers_with_one_number_are_both_told(nodes, number):
    flags = ("--nnodes", 3, "--node-rank", number, "--master-addr", "node0", "--nproc-per-node", 1)
    third = nodes.start("node0", *RUN, "--nnodes", 3, "--node-rank", 0, *flags[4:], *TELL) if number else None
    both = on_both(nodes, (*RUN, *flags, *TELL))
    ended = [*both, *([finish(third)] if third else [])]

    assert [done.code for done in ended] == [2] * len(ended), [done.err for done in ended]
    for done in ended:
        assert f"two launchers say that they are node {number} of 3, on node" in done.err
        assert "Traceback" not in done.err


def test_a_meeting_place_that_nobody_knows_is_an_error(nodes):
    flags = ("--nnodes", 2, "--node-rank", 1, "--master-addr", "nowhere.invalid")
    done = nodes.run("node0", *RUN, *flags, *TELL)

    assert done.code == 2
    assert "nowhere.invalid, the host of rank 0, cannot be resolved on node0" in done.err
