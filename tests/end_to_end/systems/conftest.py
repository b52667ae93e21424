"""Nodes and a Slurm cluster, kept for all tests that use them; each test leaves them as they were."""

import time
from pathlib import Path

import pytest

from support.nodes import Nodes, can_make_nodes
from support.slurm import Slurm, can_run_slurm


@pytest.fixture(scope="session")
def kept_nodes(tmp_path_factory):
    can_make_nodes()
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), 4)
    yield nodes
    nodes.close()


@pytest.fixture(scope="session")
def kept_slurm(kept_nodes, tmp_path_factory):
    can_run_slurm()
    slurm = Slurm(kept_nodes, tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.close()


@pytest.fixture
def nodes(kept_nodes):
    """Four nodes, node0 to node3, and a login node; what a test leaves running on them fails it."""
    before = kept_nodes.processes()
    yield kept_nodes
    left = _left(kept_nodes, before)
    names = sorted(_command_of(pid) for pid in left)
    kept_nodes.kill(left)
    assert not left, f"the test left processes on the nodes: {names}"


@pytest.fixture
def slurm(kept_slurm, nodes):
    """Slurm on the four nodes."""
    yield kept_slurm
    if kept_slurm.states():
        kept_slurm.cancel_all()


def _left(nodes, before, *, seconds=10):
    """Return the processes that did not run before and do not end in time."""
    end = time.monotonic() + seconds
    while (left := nodes.processes() - before) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone"
