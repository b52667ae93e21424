"""A script that runs once on several nodes goes on, with the same result, when nodes are lost."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import finish
from support.launches import RUN

SCRIPT = """
import os, socket, sys, time
import torch
from torch import nn

gone, paused = sys.argv[1:]
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        if os.path.exists(gone) and socket.gethostname() == "node1":
            os._exit(9)
        return self.layers(x)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(40, 16, 6)
for step, x in enumerate(data):
    if step == 20:
        open(gone, "w").close()
        while os.path.exists(paused):
            time.sleep(0.05)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9f}")
"""
FLAGS = ("-n", 4, "--nnodes", 2, "--short-calls", "split")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def losses(script, tmp_path):
    """The output of the script under Python itself."""
    command = [sys.executable, script, tmp_path / "no", tmp_path / "none"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def started(nodes, *arguments, flags=()):
    """Start a launcher on each of two nodes."""
    meet = ("--master-addr", "node0", "--master-port", 29500)
    return [
        nodes.start(f"node{rank}", *RUN, *FLAGS, *flags, "--node-rank", rank, *meet, *arguments)
        for rank in range(2)
    ]


def test_workers_that_die_on_another_node_do_not_end_the_run(nodes, script, losses, tmp_path):
    """Only this finds a launcher that ends the run with the failure of a helper."""
    launchers = started(nodes, script, tmp_path / "gone", tmp_path / "none")
    main, _ = [finish(one) for one in launchers]
    assert main.code == 0, main.err
    assert main.out == losses
    assert "computes all calls alone" in main.err
    assert "20 calls split" in main.err


@pytest.mark.long
def test_a_node_that_cannot_be_reached_does_not_end_the_run(nodes, script, losses, tmp_path):
    """Only this finds a main rank that waits for a lost node longer than the user's limit."""
    gone, paused = Path(tmp_path, "gone.node9"), tmp_path / "paused"
    paused.touch()
    launchers = started(nodes, script, gone, paused, flags=("--hang-timeout", 3))
    deadline = time.monotonic() + 60
    while not gone.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    gone.unlink()  # no worker dies
    nodes.disconnect("node1")
    try:
        paused.unlink()
        main = finish(launchers[0])
    finally:
        nodes.reconnect("node1")
    finish(launchers[1])
    assert main.code == 0, main.err
    assert main.out == losses
    assert "computes all calls alone" in main.err
