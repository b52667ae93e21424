"""Calls during the capture of a CUDA graph; the test replaces torch's functions that report a capture."""

import pytest
import torch
from torch import nn

from samestep.autopilot.split.cuda_graphs import CAPTURED, graph_obstacle
from samestep.base.errors import UsageError


@pytest.fixture
def captures(monkeypatch):
    """Let torch report a capture in this thread."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def test_an_ordinary_call_has_no_obstacle():
    assert graph_obstacle(nn.Linear(2, 2)) is None


@pytest.mark.usefixtures("captures")
def test_a_captured_call_with_gradients_is_refused():
    with pytest.raises(UsageError, match="CUDA graph"):
        graph_obstacle(nn.Linear(2, 2))


@pytest.mark.usefixtures("captures")
def test_a_captured_call_without_gradients_is_unsplit():
    with torch.no_grad():
        assert graph_obstacle(nn.Linear(2, 2)) == CAPTURED
