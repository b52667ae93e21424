"""The trainer with ``--exact`` has the same weights for any number of workers."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from samestep.base.errors import CheckpointError, OutOfStep, UsageError
from samestep.parallel.exact import identity
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.read import read
from samestep.training.loop import training_loop
from samestep.training.loop.training_loop import Callbacks
from samestep.training.networks import build
from samestep.training.recipes.resolve import Request, resolve
from samestep.training.recipes.run_recipe import run_recipe
from samestep.training.settings import RunOptions
from support.training import Memory, digits, settings, train, training

OPTIONS = {
    "plain": {},
    "mixed precision": {"precision": "bf16", "optimizer": "adamw", "lr": 1e-3},
    "half precision": {"precision": "bf16-true"},
    "loss scaling": {"precision": "fp16", "clip_norm": 1.0},
    "accumulation": {"accumulate": 2, "augment": "crop:1,flip", "precision": "fp32", "ema": 0.9},
    "seven shards": {"exact": 7, "batch_size": 30, "schedule": "cosine", "precision": "fp32"},
}


def model():
    return nn.Sequential(build("convnet", shape=(1, 8, 8), classes=10), nn.Dropout(0.2))


def exact(**changes):
    return settings(**{"epochs": 1, "exact": 8, **changes})


def run(world, chosen):
    return train(world, chosen, model, digits(150, 30))


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_any_number_of_workers_ends_with_the_bits_of_one(changes):
    alone = run(SoloWorld(), exact(**changes))

    for size in (2, 3):
        for rank in run_ranks(run, size, exact(**changes)):
            assert same_bits(rank.state, alone.state)
            assert rank.result.weights_sha256 == alone.result.weights_sha256
            assert rank.losses == pytest.approx(alone.losses, rel=1e-3)


def test_losses_have_the_precision_of_the_training():
    chosen = exact(exact=1)
    losses, plain = (
        train(SoloWorld(), each, sets=digits(150, 30)).losses
        for each in (chosen, replace(chosen, exact=None))
    )

    assert losses == pytest.approx(plain, rel=1e-12)


def interrupted(world, folder, chosen, *, snapshot=None):
    """Train with a checkpoint every second step, from where `snapshot` was taken; return the last digest."""
    options = RunOptions(checkpoint_steps=2, keep=9)
    made = training(world, chosen, model, digits(150, 30), options=options)
    if snapshot is not None:
        made.restore(snapshot)
    memory = Memory()
    checkpoints = CheckpointManager(world, options, folder=folder)
    result = made.run(replace(Callbacks.disabled(world, sink=memory), checkpoints=checkpoints))
    checkpoints.close()
    return result.weights_sha256


def test_a_resume_in_the_middle_of_an_epoch_at_another_number_has_the_same_bits(tmp_path):
    whole = interrupted(SoloWorld(), tmp_path / "whole", exact(epochs=2))
    snapshot = read(tmp_path / "whole" / "step-2")

    resumed = run_ranks(resume, 3, tmp_path / "resumed", exact(epochs=2), snapshot)
    assert resumed == [whole] * 3


def resume(world, folder, chosen, snapshot):
    return interrupted(world, folder, chosen, snapshot=snapshot)


def test_a_resume_with_another_number_of_threads_is_refused(tmp_path, monkeypatch):
    interrupted(SoloWorld(), tmp_path, exact())
    snapshot = read(tmp_path / "step-2")
    made = training(SoloWorld(), exact(), model, digits(150, 30))
    began = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: began + 1)

    with pytest.raises(CheckpointError, match=rf"threads was {began} .* {began + 1} .*--threads {began}"):
        made.restore(snapshot)


def test_properties_that_an_older_checkpoint_lacks_are_printed(tmp_path, monkeypatch, capsys):
    random = torch.get_rng_state()
    stored = ("threads", "capability", "torch", "device")
    known = identity.identity(torch.device("cpu"))
    changes = {"exact": 2, "epochs": 1, "batch_size": 50}
    begun = resolve(Request(subset=100, changes=changes, out=tmp_path), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "identity", lambda _: {name: known[name] for name in stored})
        run_recipe(SoloWorld(), begun)
    (tmp_path / "result.json").unlink()
    capsys.readouterr()

    run_recipe(SoloWorld(), resolve(Request(changes={}, resume=tmp_path), workers=1))

    assert re.search(
        r"not compared, .* step-2 .*: settings of torch, processor, the bits of a",
        capsys.readouterr().err,
    )
    torch.set_rng_state(random)


def test_a_shard_of_one_sample_is_refused_with_batch_norm():
    def flat_norm():
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))

    with pytest.raises(UsageError, match=r"--exact 8: .* 9 samples of step 5"):
        train(SoloWorld(), exact(), flat_norm, digits(137, 30))


def other_capability(world):
    real = identity.identity(world.device)
    faked = {**real, "capability": "other"} if world.place.rank == 1 else real
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "identity", lambda _: faked)
        identity.check_same_environment(world)


def test_ranks_on_unequal_machines_are_refused():
    with pytest.raises(OutOfStep, match=r"capability .* other on rank 1"):
        run_ranks(other_capability, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exact": 33}, "--exact 33 .* 32 samples"),
        ({"exact": 8, "accumulate": 8}, "--exact 8 .* 4 samples"),
        ({"exact": 4, "sync": "ddp"}, "--exact 4 .* --sync ddp"),
        ({"exact": 4, "compress": "bf16"}, "--exact 4 .* --compress bf16"),
        ({"exact": 4, "batch_norm": "local"}, "--exact .* --batch-norm"),
        ({"exact": 4, "batch_norm": "global"}, "--exact .* --batch-norm"),
        ({"exact": 0}, "--exact is 0"),
    ],
)
def test_options_that_exact_does_not_support_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        settings(**changes)


def test_more_workers_than_shards_are_refused():
    with pytest.raises(UsageError, match=r"--exact 2 .* 3"):
        settings(exact=2).check_workers(3)
