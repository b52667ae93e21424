"""What goes wrong with checkpoints is told; an old one that stays is no failure of a training."""

import errno
import os

import torch

from samestep.training.conduct import Conduct
from samestep.training.keeping import Keeper, Moment
from samestep.world.solo import SoloWorld
from support.snapshots import names


def test_an_old_checkpoint_that_cannot_be_deleted_is_told_once_and_the_training_ends_well(
    tmp_path, monkeypatch
):
    rename = os.rename

    def held(name, target, **options):
        if name == "step-1":
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(name, target, **options)

    monkeypatch.setattr(os, "rename", held)
    told = []
    keeper = Keeper(SoloWorld(), Conduct(keep=1), folder=tmp_path, tell=told.append)
    for step in (1, 2, 3, 4):
        keeper.save(Moment(model={"w": torch.ones(1)}, optimizer={}, state={"step": step}))
    keeper.finish()
    keeper.close()

    assert told == [
        f"old checkpoints in {tmp_path} cannot be deleted: step-1 (Permission denied). Delete them by hand."
    ]
    assert names(tmp_path) == ["step-1", "step-4"]
