"""Calls that stay unsplit because of what surrounds them."""

import torch

from samestep.autopilot.split.bypassed_modules import CAPTURED, obstacle


def test_a_captured_call_is_unsplit(monkeypatch):
    """The test replaces torch's functions that report a capture: there is no device."""
    assert obstacle() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert obstacle() == CAPTURED
