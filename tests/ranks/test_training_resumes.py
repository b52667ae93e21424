"""A checkpoint of another training is refused before anything changes, and the error names the difference."""

from dataclasses import replace

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.read import read
from samestep.training.loop.training_loop import Callbacks
from samestep.training.settings import RunOptions
from support.snapshots import same
from support.training import settings, training

BEGUN = {"epochs": 1, "schedule": "step", "step_epochs": 1.0, "weight_decay": 0.1, "milestones": (1.0, 2.0)}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """The checkpoint in the middle of a short training."""
    folder = tmp_path_factory.mktemp("checkpoints")
    state = torch.get_rng_state()
    options = RunOptions(checkpoint_steps=5)
    checkpoints = CheckpointManager(SoloWorld(), options, folder=folder)
    callbacks = replace(Callbacks.disabled(SoloWorld()), checkpoints=checkpoints)
    training(SoloWorld(), settings(**BEGUN), options=options).run(callbacks)
    checkpoints.close()
    torch.set_rng_state(state)
    return read(folder / "step-5")


def without(parts, *names):
    return {name: value for name, value in parts.items() if name not in names}


def assert_refused(world, chosen, snapshot, message):
    made = training(world, settings(**chosen))
    before = (
        made.learner.model.state_dict(),
        made.learner.optimization_state(),
        made.journal.state_dict(),
        made.position,
    )

    with pytest.raises(CheckpointError, match=message):
        made.restore(snapshot)

    after = (
        made.learner.model.state_dict(),
        made.learner.optimization_state(),
        made.journal.state_dict(),
        made.position,
    )
    assert same(before[:3], after[:3])
    assert before[3] == after[3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.1}, r"--lr 0.05, .* 0.1"),
        ({"momentum": 0.5}, r"--momentum 0.9, .* 0.5"),
        ({"weight_decay": 0.2}, r"--weight-decay 0.1, .* 0.2"),
        ({"optimizer": "adamw"}, r"--optimizer sgd, .* adamw"),
        ({"schedule": "constant"}, r"--schedule step, .* constant"),
        ({"step_epochs": 2.0}, r"--step-epochs 1.0, .* 2.0"),
        ({"milestones": (1.0,)}, r"--milestones \[1.0, 2.0\], .* \[1.0\]"),
        ({"clip_norm": 1.0}, r"--clip-norm None, .* 1.0"),
        ({"seed": 1}, r"--seed 0, .* 1"),
        ({"epochs": 2}, r"--epochs 1, .* 2"),
        ({"ema": 0.9}, r"--ema 0.0, .* 0.9"),
    ],
    ids=str,
)
def test_changed_settings_are_named(snapshot, change, message):
    run_ranks(lambda world: assert_refused(world, {**BEGUN, **change}, snapshot, message), 2)


@pytest.mark.parametrize("part", ["optimizer", "schedule", "scaler", "random"])
def test_a_missing_state_is_named(snapshot, part):
    lacking = replace(snapshot, optimizer=without(snapshot.optimizer, part))
    assert_refused(SoloWorld(), BEGUN, lacking, rf"no {part},? .*--eval-only --from")


def test_a_checkpoint_that_a_script_saved_is_refused(snapshot):
    lacking = replace(snapshot, state={"step": 5})
    assert_refused(SoloWorld(), BEGUN, lacking, r"no best, epoch, loss_count, .*--eval-only")


@pytest.mark.parametrize("change", [{"channels_last": True}, {"sync": "reference"}], ids=str)
def test_settings_that_do_not_change_the_steps_may_differ(snapshot, change):
    made = training(SoloWorld(), settings(**BEGUN, **change))
    made.restore(snapshot)
    assert made.run(Callbacks.disabled(SoloWorld())).steps == 10
