"""A script that fails and a full disk do not damage complete checkpoints."""

import subprocess
import sys
from contextlib import closing

import pytest
import torch

from samestep.training.checkpoint.checkpoint_schedule import Retention, Writer
from samestep.training.checkpoint.newest import newest_valid
from samestep.training.checkpoint.snapshot import Snapshot
from support.snapshots import names
from support.systems import small_file_system

SCRIPT = """
import sys
import torch
from pathlib import Path
from samestep.training.checkpoint.checkpoint_schedule import Writer
from samestep.training.checkpoint.checkpoint_schedule import Retention
from samestep.training.checkpoint.snapshot import Snapshot
writer = Writer(Path(sys.argv[1]), Retention())
writer.save(Snapshot({"w": torch.zeros(1_000_000)}, {}, {"step": 1}))
raise ValueError("a bug")
"""


def save(writer, step, *, kilobytes, part="model"):
    parts = {"model": {}, "optimizer": {}, part: {"w": torch.zeros(kilobytes, 256)}}
    writer.save(Snapshot(**parts, state={"step": step}))
    writer.wait()


def test_a_script_that_fails_after_save_has_its_checkpoint(tmp_path):
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)

    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "ValueError: a bug")
    assert newest_valid(tmp_path).path.name == "step-1"
    assert names(tmp_path) == ["step-1"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where this process may mount one."""
    with small_file_system(tmp_path / "disk", "2m"):
        yield tmp_path / "disk"


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_full_disk_is_reported_and_no_checkpoint_is_lost(small_disk, part):
    with closing(Writer(small_disk, Retention(last=1))) as writer:
        save(writer, 1, kilobytes=1200)
        save(writer, 2, kilobytes=1200, part=part)
        assert writer.failure == (
            f"cannot write the checkpoint {small_disk / 'step-2'}: No space left on device."
        )
        chosen = newest_valid(small_disk)
        assert (chosen.path.name, chosen.refused) == ("step-1", ())
        assert names(small_disk) == ["step-1"]

        save(writer, 3, kilobytes=200)
        assert writer.failure is None
        save(writer, 4, kilobytes=1200)  # step 1 has made room

    assert writer.failure is None
    assert names(small_disk) == ["step-4"]
    assert newest_valid(small_disk).path.name == "step-4"
