"""Failures of old checkpoints are reported and do not end the training."""

import errno
import os

import torch

from samestep.ranks.world.protocol import SoloWorld
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.settings import RunOptions
from support.snapshots import names


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_once_and_saving_continues(
    tmp_path, monkeypatch
):
    rename = os.rename

    def held(name, target, **options):
        if name == "step-1":
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(name, target, **options)

    monkeypatch.setattr(os, "rename", held)
    reported = []
    checkpoints = CheckpointManager(SoloWorld(), RunOptions(keep=1), folder=tmp_path, report=reported.append)
    for step in (1, 2, 3, 4):
        checkpoints.save(Snapshot(model={"w": torch.ones(1)}, optimizer={}, state={"step": step}))
    checkpoints.finish()
    checkpoints.close()

    (warning,) = reported
    assert "step-1 (Permission denied)" in warning
    assert names(tmp_path) == ["step-1", "step-4"]
