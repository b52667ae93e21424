"""Processes that a script forks keep the buffers of gradients: on a GPU, freeing them fails there."""

import os
import weakref
from pathlib import Path

import pytest

from samestep.autopilot.script.options import DEFAULTS
from samestep.parallel.gradients.bucket import Bucket
from support.script_runner import run_script

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net, data = nn.Linear(4, 2), TensorDataset(torch.rand(32, 4), torch.rand(32, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    for x, y in DataLoader(data, 8, num_workers=1, multiprocessing_context="fork"):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
"""


def run_recording_freed(world, script):
    """Run a script; return the buckets that it has created, and write the processes that free any."""
    begin, created = Bucket.__init__, []

    def begin_recorded(bucket, *args, **kwargs):
        begin(bucket, *args, **kwargs)
        created.append(id(bucket))
        weakref.finalize(bucket, freed).atexit = False

    def freed():
        with Path(script.parent, "freed").open("a") as file:
            file.write(f"{os.getpid()} ")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "__init__", begin_recorded)
        _, _, trace = run_script(world, script, (), script.parent, 1, DEFAULTS)
    return len(created), os.getpid(), trace


def test_a_worker_of_a_loader_frees_no_bucket(processes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ranks = processes.run(run_recording_freed, 2, script)
    assert all(created and not trace for created, _, trace in ranks)
    freed = tmp_path / "freed"
    assert {*map(int, freed.read_text().split() if freed.exists() else ())} <= {pid for _, pid, _ in ranks}
