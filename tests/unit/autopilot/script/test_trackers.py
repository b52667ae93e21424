"""Only rank 0 records in experiment trackers."""

import os

import pytest

from samestep.autopilot.script import trackers


@pytest.mark.parametrize(("rank", "mode"), [(0, "offline"), (1, "disabled")])
def test_other_ranks_have_their_trackers_switched_off(monkeypatch, rank, mode):
    monkeypatch.setenv("WANDB_MODE", "offline")

    with trackers.disabled_trackers(rank):
        assert os.environ["WANDB_MODE"] == mode

    assert os.environ["WANDB_MODE"] == "offline"
    assert "NEPTUNE_MODE" not in os.environ


@pytest.mark.parametrize(("package", "mode"), [(None, "debug"), ("neptune_scale", "disabled")])
def test_neptunes_packages_have_different_switches(monkeypatch, package, mode):
    monkeypatch.setattr(trackers, "find_spec", lambda name: object() if name == package else None)

    with trackers.disabled_trackers(1):
        assert os.environ["NEPTUNE_MODE"] == mode
