"""A default device or type that a script sets is none of samestep's own tensors."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def trained():
    """Train a model of the CPU with dropout and batch norm while new tensors are of the meta device."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(48, 8, generator=generator)
    labels = (inputs.sum(1) > 0).long()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    torch.set_default_device("meta")
    try:
        for start in range(0, 48, 16):
            loss = cross_entropy(model(inputs[start : start + 16]), labels[start : start + 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    finally:
        torch.set_default_device(None)
    return losses


def test_a_default_device_changes_no_step(run):
    serial = trained()
    found, split, unsplit, _ = run(2, trained)
    assert found == pytest.approx(serial, rel=0, abs=1e-6)
    assert (split, unsplit) == (3, 0)


NOTEBOOK = """
import torch
torch.set_default_dtype(torch.float64)
import samestep
model = torch.nn.Linear(4, 2)
with samestep.workers(2):
    for _ in range(3):
        model(torch.ones(8, 4)).sum().backward()
"""


def test_a_default_type_of_one_process_keeps_no_call_unsplit():
    """Only here rank 0 imports what the ranks share with another default than its helpers."""
    ended = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "3 calls split" in ended.stderr, ended.stderr
