"""If rank 0 cannot write a file, every rank gets one clear error."""

import pytest

from samestep.base.errors import CheckpointError, Error
from samestep.base.record import IDENTITY_FILE
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.output.run_folder import LOCK_FILE, RunFolder
from samestep.training.recipes.resolve import Request, resolve
from samestep.training.recipes.run_recipe import run_recipe
from samestep.training.settings import RunOptions
from support.training import settings, train


@pytest.mark.parametrize(
    ("name", "named"),
    [("sessions.jsonl", "sessions.jsonl"), (LOCK_FILE, LOCK_FILE), (IDENTITY_FILE, "config")],
)
def test_a_run_folder_that_cannot_be_written_ends_all_ranks(tmp_path, name, named):
    (tmp_path / name).mkdir()
    order = resolve(Request(subset=64, changes={"epochs": 1}, out=tmp_path), workers=3)

    def begin(world):
        with pytest.raises(Error, match=named):
            run_recipe(world, order)

    run_ranks(begin, 3)


def test_a_checkpoint_folder_that_cannot_be_created_ends_all_ranks(tmp_path):
    (tmp_path / "file").write_text("in the way")

    def begin(world):
        with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*: Not a directory"):
            CheckpointManager(world, RunOptions(), folder=tmp_path / "file" / "checkpoints")

    run_ranks(begin, 3)


def test_each_file_of_a_run_that_cannot_be_written_is_named(tmp_path):
    result = run_ranks(lambda world: train(world, settings(epochs=1)), 1)[0].result
    folder = RunFolder(tmp_path)
    writes = {
        "config.toml": lambda: folder.write_config({"lr": 0.1}),
        "result.json": lambda: folder.finish(result),
    }
    for name, write in writes.items():
        (tmp_path / name).mkdir()
        then = "Choose another --out" if name == "config.toml" else f"--resume {tmp_path}"
        with pytest.raises(Error, match=rf"cannot write to {tmp_path}/{name}: Is a directory\. .*{then}"):
            write()
