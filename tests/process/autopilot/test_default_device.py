"""If a script sets a default device, samestep's own tensors stay on the CPU; tested with the meta device."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def trained():
    """Train a model of the CPU with dropout and batch norm while new tensors have no values."""
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
