"""Weights move to shared memory only where nothing else can use their old memory."""

import torch

from samestep.autopilot.helpers.shared_storage import _is_movable


def test_a_storage_that_others_use_is_not_moved():
    weights = torch.zeros(4)
    assert _is_movable([weights])
    view = weights[:2]
    assert not _is_movable([weights])
    assert _is_movable([weights, view])


def test_without_a_count_of_users_nothing_is_moved(monkeypatch):
    """Builds of torch 2.6 without CUDA have none, and ended each run on several workers."""
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert not _is_movable([torch.zeros(4)])
