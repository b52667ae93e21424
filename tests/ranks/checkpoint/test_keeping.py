"""What goes wrong with checkpoints is told; an old one that stays is no failure of a training."""

import errno
from pathlib import Path

import torch

from samestep.training.conduct import Conduct
from samestep.training.keeping import Keeper, Moment
from samestep.world.solo import SoloWorld


def test_an_old_checkpoint_that_cannot_be_deleted_is_told_once_and_the_training_ends_well(
    tmp_path, monkeypatch
):
    rename = Path.rename

    def held(path, target):
        if path.name == "step-1":
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", held)
    told = []
    keeper = Keeper(SoloWorld(), Conduct(keep=1), folder=tmp_path, tell=told.append)
    for step in (1, 2, 3, 4):
        keeper.save(Moment(model={"w": torch.ones(1)}, optimizer={}, state={"step": step}))
    keeper.finish()
    keeper.close()

    assert told == [
        f"old checkpoints in {tmp_path} cannot be deleted: step-1 (Permission denied). Delete them by hand."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-4"]
