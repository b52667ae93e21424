"""``samestep train --exact`` on the command line."""

import json
import platform
import re
import shutil

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.parallel.exact.identity import check_resumable
from samestep.training.checkpoint.newest import newest_valid
from support import commands
from support.forked_commands import samestep
from support.tiers import long_param

TRAIN = ("train", "digits", "--exact", 4, "--subset", 192, "--batch-size", 48, "--epochs", 2)


def digest(done):
    assert done.code == 0, done.err
    return json.loads(done.out)["weights_sha256"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the run folder of one worker with all checkpoints, and the digest of its weights."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    done = samestep(*TRAIN, "--checkpoint-steps", 1, "--keep", 20, "--out", folder, "--json")
    return folder, digest(done)


@pytest.fixture
def stopped(alone, tmp_path):
    """Return that run as it was in the middle of its first epoch."""
    folder = shutil.copytree(alone[0], tmp_path / "stopped")
    (folder / "result.json").unlink()
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        if checkpoint.name != "step-3":
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    return folder


def test_three_workers_end_with_the_weights_of_one(alone, tmp_path):
    assert digest(samestep(*TRAIN, "-n", 3, "--out", tmp_path / "three", "--json")) == alone[1]


@pytest.mark.parametrize(("workers", "variables"), [long_param(1, {}), (2, {"OMP_NUM_THREADS": "2"})])
def test_a_training_started_by_run_ends_with_the_same_weights(alone, tmp_path, workers, variables):
    run = ("run", "-n", workers, "-m", "samestep")
    assert digest(samestep(*run, *TRAIN, "--out", tmp_path / "run", "--json", **variables)) == alone[1]


def test_a_run_does_not_resume_with_other_settings_of_torch(stopped):
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(CheckpointError, match=r"denormals kept.* denormals flushed"):
            check_resumable(
                newest_valid(stopped / "checkpoints").snapshot.state["identity"], torch.device("cpu")
            )
    finally:
        torch.set_flush_denormal(False)


def test_a_run_that_resumes_with_two_workers_ends_with_the_weights_of_one(alone, stopped):
    assert digest(samestep("train", "--resume", stopped, "-n", 2, "--json")) == alone[1]


def test_a_run_does_not_resume_with_another_number_of_threads(stopped):
    done = samestep("train", "--resume", stopped, "-n", 2, "--threads", 2)

    assert done.code == 2
    assert re.search(r"threads was 1 .* 2 now.* --threads 1\.", done.err)
    assert "Traceback" not in done.err


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names another instruction set of x86-64")
def test_a_run_does_not_resume_if_a_library_setting_changes_the_bits(stopped):
    # Read once in a process, and those that others are forked from have computed before.
    done = commands.samestep("train", "--resume", stopped, "-n", 2, ONEDNN_MAX_CPU_ISA="SSE41")

    assert done.code == 2
    assert re.search("the bits of a convolution in fp32 .* ONEDNN_MAX_CPU_ISA", done.err)
    assert "Traceback" not in done.err
