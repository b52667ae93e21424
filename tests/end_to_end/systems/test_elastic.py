"""A run on nodes of which one is disconnected, lost and added again ends with the uninterrupted weights."""

import json
import os
import sys
import time

import psutil
import pytest

from support.forked_commands import samestep
from support.run_files import json_lines_so_far

PATIENCE_S = 100
TRAIN = (
    *("train", "digits", "--exact", 4, "--subset", 480, "--batch-size", 32, "--threads", 1, "--seed", 0),
    *("--evaluate-every", 1000, "--checkpoint-steps", 5, "--epochs", 10),
)
STEPS = 10 * 15


class Cluster:
    """Launchers of one run on some nodes."""

    def __init__(self, nodes, folder):
        self._nodes, self._folder, self._running = nodes, folder, {}

    def launch(self, node):
        """Start a launcher on a node."""
        self._running[node] = self._nodes.start(
            node,
            *(sys.executable, "-m", "samestep", "run", "--nnodes", "1:2", "--nproc-per-node", 2),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500", "--rdzv-id", "elastic"),
            *("--max-restarts", 5, "--hang-timeout", 30, "-m", "samestep", *TRAIN),
            *("--resume", self._folder),
        )

    def lose(self, node):
        """Kill all processes of a node, at once."""
        self._nodes.kill({pid for pid in self._nodes.processes() if self._is_on(pid, node)})
        self._running.pop(node).communicate()

    def hold(self, node):
        """Suspend a node's workers; their launcher resumes them before it stops them."""
        for worker in psutil.Process(self._running[node].pid).children():
            worker.suspend()

    def _is_on(self, pid, node):
        return os.getsid(pid) == self._running[node].pid

    def sizes(self):
        return [row["world_size"] for row in json_lines_so_far(self._folder / "sessions.jsonl")]

    def await_steps(self, sizes, steps):
        """Return once the sessions have these sizes, and the run has taken this number of steps."""
        deadline = time.monotonic() + PATIENCE_S
        while self.sizes() != sizes or len(json_lines_so_far(self._folder / "metrics.jsonl")) < steps:
            for node, process in self._running.items():
                assert process.poll() is None, (node, process.communicate())
            assert time.monotonic() < deadline, (
                self.sizes(),
                len(json_lines_so_far(self._folder / "metrics.jsonl")),
            )
            time.sleep(0.05)

    def finish(self):
        """Wait for the launchers' ends; return their exit codes and stderr."""
        said = {node: process.communicate(timeout=PATIENCE_S) for node, process in self._running.items()}
        return {node: (process.returncode, said[node][1]) for node, process in self._running.items()}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_waits_for_a_link_and_continues_without_a_lost_node_and_with_one_that_returns(nodes, tmp_path):
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    cluster = Cluster(nodes, torn)
    cluster.launch("node0")
    cluster.launch("node1")
    cluster.await_steps([4], 10)
    nodes.disconnect("node1")  # for less than --hang-timeout: nothing but time is lost
    time.sleep(1)
    nodes.reconnect("node1")
    cluster.await_steps([4], 30)
    cluster.lose("node1")
    cluster.await_steps([4, 2], 50)
    cluster.hold("node0")  # else it may have trained to the end before the other is there
    cluster.launch("node1")
    ended = cluster.finish()

    assert {node: code for node, (code, _) in ended.items()} == {"node0": 0, "node1": 0}, ended
    assert cluster.sizes() == [4, 2, 4]
    assert [row["step"] for row in json_lines_so_far(torn / "metrics.jsonl")] == list(range(1, STEPS + 1))
    done = samestep(*TRAIN, "-n", 1, "--out", whole)
    assert done.code == 0, done.err
    digests = {json.loads((run / "result.json").read_text())["weights_sha256"] for run in (torn, whole)}
    assert len(digests) == 1


@pytest.mark.long
def test_the_loss_of_the_rendezvous_node_is_reported(nodes, tmp_path):
    cluster = Cluster(nodes, tmp_path / "run")
    cluster.launch("node0")
    cluster.launch("node1")
    cluster.await_steps([4], 5)
    cluster.lose("node0")
    code, said = cluster.finish()["node1"]

    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("samestep: error: the rendezvous at node0:29500 is lost: ")
    assert "--requeue" in last
