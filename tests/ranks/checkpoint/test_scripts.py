"""Every rank calls samestep.save and load, and gets the result or the error; only rank 0 accesses files."""

import copy
import errno
import os
import warnings
from itertools import chain

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import samestep
from samestep.base.errors import CheckpointError, OutOfStep, UsageError
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.newest import checkpoints_in
from samestep.training.checkpoint.read import read
from support.iterable_data_sets import Counting
from support.snapshots import names, network, same, stepped

NUMBERS = TensorDataset(torch.arange(23))


class Script:
    """The model, optimizer, schedule and loader of a script on one rank."""

    def __init__(self, world=None, seed=0):
        self.model = network(seed)
        self.optimizer = stepped(self.model)
        self.schedule = StepLR(self.optimizer, step_size=1)
        self.loader = samestep.shard(NUMBERS, batch_size=4, shuffle=True, world=world or SoloWorld())

    @property
    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loader": self.loader,
        }

    @property
    def weights(self):
        return dict(self.model.state_dict())


def rank_0_only(world, folder):
    """Return `folder` on rank 0 and a missing path on the others, whose nodes do not have the folder."""
    return folder if world.place.is_main else folder / "not seen from here"


def save_after(world, folder, batches, **extra):
    """Iterate over some batches, then save; return the samples that this rank has used."""
    script, used = Script(world, seed=1), []
    for count, (numbers,) in enumerate(script.loader, start=1):
        used += numbers.tolist()
        if count == batches:
            path = samestep.save(rank_0_only(world, folder), step=count, world=world, **script.parts, **extra)
            return used, path
    raise AssertionError


def load_and_finish(world, folder):
    """Load, then iterate to the end of the epoch; return the loaded values, script and used samples."""
    script = Script(world, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another number of ranks
        metadata = samestep.load(rank_0_only(world, folder), world=world, **script.parts)
    used = [number for (numbers,) in script.loader for number in numbers.tolist()]
    return metadata, script, used


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 2), (2, 1)])
def test_a_script_resumes_within_an_epoch_on_any_number_of_ranks(tmp_path, before, after):
    saved = run_ranks(save_after, before, tmp_path, 3)
    loaded = run_ranks(load_and_finish, after, tmp_path)

    first = Script(seed=1)
    assert {path for _, path in saved} == {tmp_path / "step-3"}
    for metadata, script, _ in loaded:
        assert metadata == {"step": 3}
        assert same(script.weights, first.weights)
        assert same(script.optimizer.state_dict(), first.optimizer.state_dict())
    used = [samples for samples, _ in saved] + [samples for _, _, samples in loaded]
    assert sorted(chain.from_iterable(used)) == list(range(23))


def test_additional_values_are_saved_and_loaded(tmp_path):
    script = Script()

    samestep.save(tmp_path, step=4, world=SoloWorld(), model=script.model, best=0.5, names=["a"])

    metadata = samestep.load(tmp_path, world=SoloWorld(), model=script.model)
    assert metadata == {"step": 4, "best": 0.5, "names": ["a"]}


def test_the_random_state_is_restored(tmp_path):
    model = network()
    samestep.save(tmp_path, step=1, world=SoloWorld(), model=model)
    expected = torch.rand(3)
    torch.rand(5)

    samestep.load(tmp_path, world=SoloWorld(), model=model)

    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("data", [range(8), Counting(8)], ids=["indexed", "stream"])
def test_a_pass_that_is_resumed_draws_the_random_numbers_of_an_uninterrupted_one(tmp_path, data):
    def draws(*, loaded):
        loader = samestep.shard(data, batch_size=2, world=SoloWorld())
        if loaded:
            samestep.load(tmp_path, world=SoloWorld(), model=network(), loader=loader)
        for step, _ in enumerate(loader, start=1):
            yield float(torch.rand(()))
            if step == 2 and not loaded:
                samestep.save(tmp_path, step=2, world=SoloWorld(), model=network(), loader=loader)

    uninterrupted = list(draws(loaded=False))

    assert list(draws(loaded=True)) == uninterrupted[2:]


@pytest.mark.parametrize("step", [2.0, "2", -1])
def test_a_step_that_is_no_number_of_completed_steps_is_refused(tmp_path, step):
    with pytest.raises(CheckpointError, match="step="):
        samestep.save(tmp_path, step=step, world=SoloWorld(), model=network())

    assert not list(tmp_path.iterdir())


def test_a_load_on_another_number_of_ranks_warns_of_different_random_numbers(tmp_path):
    samestep.save(tmp_path, step=1, world=SoloWorld(), model=network())

    with pytest.warns(UserWarning, match=r"step-1 has the random state of 1 rank.s., not of 2") as warned:
        run_ranks(lambda world: samestep.load(tmp_path, world=world, model=network()), 2)
    assert [warning.filename for warning in warned] == [__file__]


def test_a_save_at_different_steps_raises_out_of_step_and_writes_nothing(tmp_path):
    def saving(world):
        with pytest.raises(OutOfStep, match=r"rank 0 .* step 5, rank 1 at step 6"):
            samestep.save(tmp_path, step=5 + world.place.rank, world=world, model=network())

    run_ranks(saving, 2)

    assert not checkpoints_in(tmp_path)


def test_a_save_at_different_positions_in_the_data_raises_out_of_step(tmp_path):
    def saving(world):
        script = Script(world)
        if world.place.rank:
            script.loader.set_epoch(1)
        with pytest.raises(OutOfStep, match=r"rank 0 .* epoch 0, samples 0, rank 1 at .* epoch 1, samples 0"):
            samestep.save(tmp_path, step=5, world=world, **script.parts)

    run_ranks(saving, 2)


def test_a_checkpoint_that_cannot_be_written_is_an_error_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("")

    def saving(world):
        with pytest.raises(CheckpointError, match="Not a directory"):
            samestep.save(tmp_path / "file", step=1, world=world, model=network())
        with pytest.raises(CheckpointError, match=r"'best': tensor.*JSON"):
            samestep.save(tmp_path, step=1, world=world, model=network(), best=torch.ones(1))

    run_ranks(saving, 2)


def test_a_damaged_checkpoint_is_reported_once_and_all_ranks_load_the_previous_one(tmp_path):
    run_ranks(save_after, 2, tmp_path, 1)
    run_ranks(save_after, 2, tmp_path, 2)
    os.truncate(tmp_path / "step-2" / "model.safetensors", 100)

    def loading(world):
        return samestep.load(rank_0_only(world, tmp_path), world=world, **Script(world).parts)

    with pytest.warns(UserWarning, match=r"step-2 is not used: .*model\.safetensors is damaged") as warned:
        assert run_ranks(loading, 2) == [{"step": 1}] * 2
    assert len(warned) == 1


def test_a_missing_checkpoint_is_an_error_unless_missing_ok(tmp_path):
    def loading(world):
        folder = rank_0_only(world, tmp_path / "none")
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            samestep.load(folder, world=world, model=network())
        return samestep.load(folder, world=world, model=network(), missing_ok=True)

    assert run_ranks(loading, 2) == [{}, {}]


def test_old_checkpoints_are_deleted_after_a_save(tmp_path):
    for step in (1, 2, 3):
        samestep.save(tmp_path, step=step, world=SoloWorld(), model=network(), keep=2)
    assert [step for step, _ in checkpoints_in(tmp_path)] == [3, 2]

    with pytest.raises(UsageError, match="keep is 0"):
        samestep.save(tmp_path, step=4, world=SoloWorld(), model=network(), keep=0)
    assert [step for step, _ in checkpoints_in(tmp_path)] == [3, 2]


def test_an_old_checkpoint_that_cannot_be_deleted_is_one_warning(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    def saving(world):
        return samestep.save(tmp_path, step=2, world=world, model=network(), keep=1)

    samestep.save(tmp_path, step=1, world=SoloWorld(), model=network())
    monkeypatch.setattr("samestep.training.checkpoint.checkpoint_schedule.delete", refused)

    with pytest.warns(UserWarning, match=r"cannot be deleted: step-1 \(Permission denied\)") as warned:
        assert run_ranks(saving, 2) == [tmp_path / "step-2"] * 2
    assert [warning.filename for warning in warned] == [__file__]


def save_at(folder, *steps, model=None):
    for step in steps:
        samestep.save(folder, step=step, world=SoloWorld(), model=model or network(seed=step))


def test_a_save_after_loading_an_earlier_checkpoint_renames_later_ones(tmp_path):
    save_at(tmp_path, 1, 2, 4)
    model = network()
    samestep.load(tmp_path / "step-1", world=SoloWorld(), model=model)
    assert names(tmp_path) == ["step-1", "step-2", "step-4"]  # it may only want to look

    with pytest.warns(UserWarning, match=r"it is now left-step-\d") as warned:
        save_at(tmp_path, 3, model=torch.compile(model, backend="eager"))

    assert [warning.filename for warning in warned] == [__file__] * 2
    assert names(tmp_path) == ["left-step-2", "left-step-4", "step-1", "step-3"]
    left = network()
    assert samestep.load(tmp_path / "left-step-4", world=SoloWorld(), model=left) == {"step": 4}
    assert same(dict(left.state_dict()), dict(network(seed=4).state_dict()))


def test_a_damaged_checkpoint_of_the_same_step_is_renamed_by_the_first_save_only(tmp_path):
    save_at(tmp_path, 1, 2)
    os.truncate(tmp_path / "step-2" / "model.safetensors", 100)
    model = network()
    with pytest.warns(UserWarning, match="step-2 is not used"):
        samestep.load(tmp_path, world=SoloWorld(), model=model)

    with pytest.warns(UserWarning, match="it is now left-step-2"):
        save_at(tmp_path, 2, model=model)
    save_at(tmp_path, 2, 3, model=model)

    assert names(tmp_path) == ["left-step-2", "step-1", "step-2", "step-3"]


def test_loads_into_another_model_or_from_another_folder_rename_no_checkpoint(tmp_path):
    save_at(tmp_path / "a", 1, 2)
    save_at(tmp_path / "b", 1, 2)
    model = network()
    samestep.load(tmp_path / "a", world=SoloWorld(), model=model)
    samestep.load(tmp_path / "a" / "step-1", world=SoloWorld(), model=network())
    samestep.load(tmp_path / "b" / "step-1", world=SoloWorld(), model=model)

    save_at(tmp_path / "a", 3, model=model)

    assert names(tmp_path / "a") == ["step-1", "step-2", "step-3"]


def test_a_model_without_parameters_is_saved_and_loaded(tmp_path):
    save_at(tmp_path, 1, model=torch.nn.ReLU())

    assert samestep.load(tmp_path, world=SoloWorld(), model=torch.nn.ReLU()) == {"step": 1}


def test_a_training_that_loads_nothing_renames_later_checkpoints(tmp_path):
    save_at(tmp_path, 2, 3)

    with pytest.warns(UserWarning, match="it is now left-step-3"):
        save_at(tmp_path, 2)

    assert names(tmp_path) == ["left-step-3", "step-2"]


def test_a_failed_save_renames_no_checkpoint(tmp_path):
    samestep.save(tmp_path, step=4, world=SoloWorld(), model=network())

    with pytest.raises(CheckpointError, match="JSON"):
        samestep.save(tmp_path, step=1, world=SoloWorld(), model=network(), best={1: 2.0})

    assert names(tmp_path) == ["step-4"]


def test_a_wrapped_model_is_saved_with_serial_keys_and_loads_wrapped_or_bare(tmp_path):
    def wrapped(seed):
        model = torch.nn.Module()
        model.module = network(seed)
        return model

    samestep.save(tmp_path, step=1, world=SoloWorld(), model=wrapped(1))
    bare, again = network(2), wrapped(3)
    samestep.load(tmp_path, world=SoloWorld(), model=bare)
    samestep.load(tmp_path, world=SoloWorld(), model=again)

    expected = dict(network(1).state_dict())
    assert same(dict(read(tmp_path / "step-1").model), expected)
    assert same(dict(bare.state_dict()), expected)
    assert same(dict(again.module.state_dict()), expected)


def test_the_state_of_a_scaler_is_restored(tmp_path):
    def scaler(**options):
        return torch.amp.GradScaler("cpu", **options)

    saved = scaler(init_scale=8.0)
    samestep.save(tmp_path, step=1, world=SoloWorld(), model=network(), scaler=saved)
    found = scaler(init_scale=2.0)
    samestep.load(tmp_path, world=SoloWorld(), model=network(), scaler=found)
    assert found.get_scale() == 8.0

    samestep.save(tmp_path, step=2, world=SoloWorld(), model=network(), scaler=scaler(enabled=False))
    with pytest.raises(CheckpointError, match="step-2 cannot be loaded"):
        samestep.load(tmp_path, world=SoloWorld(), model=network(), scaler=found)
    samestep.load(tmp_path, world=SoloWorld(), model=network(), scaler=scaler(enabled=False))


def other_model(script):
    script.model = torch.nn.Linear(1, 1)


def other_optimizer(script):
    script.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_model, r"step-1 belongs to another model: missing: weight, bias; unexpected: "),
        (other_optimizer, r"step-1 cannot be loaded: ValueError: .*parameter group"),
    ],
)
def test_an_incompatible_checkpoint_changes_nothing(tmp_path, change, message):
    save_after(SoloWorld(), tmp_path, 1)
    script = Script(seed=2)
    change(script)
    before = copy.deepcopy((script.weights, script.optimizer.state_dict(), script.schedule.state_dict()))

    with pytest.raises(CheckpointError, match=message):
        samestep.load(tmp_path, world=SoloWorld(), **script.parts)

    assert same((script.weights, script.optimizer.state_dict(), script.schedule.state_dict()), before)
    assert script.loader.position.samples == 0


class Refusing(StepLR):
    """A schedule that raises after it has loaded a part of an incompatible state."""

    def load_state_dict(self, state_dict):
        self.gamma = state_dict["gamma"]
        if self.step_size != state_dict["step_size"]:
            raise ValueError("another step_size")
        super().load_state_dict(state_dict)


def test_a_state_that_a_schedule_refuses_changes_nothing(tmp_path):
    save_after(SoloWorld(), tmp_path, 1)
    script = Script(seed=2)
    script.schedule = Refusing(script.optimizer, step_size=5, gamma=0.5)
    before = copy.deepcopy((script.weights, script.optimizer.state_dict(), script.schedule.state_dict()))

    with pytest.raises(CheckpointError, match=r"step-1 .*: ValueError: another step_size\."):
        samestep.load(tmp_path, world=SoloWorld(), **script.parts)

    assert same((script.weights, script.optimizer.state_dict(), script.schedule.state_dict()), before)
    assert script.loader.position.samples == 0


def test_loading_states_that_were_not_saved_is_refused_by_name(tmp_path):
    samestep.save(tmp_path, step=1, world=SoloWorld(), model=network())

    with pytest.raises(CheckpointError, match=r"step-1 was saved without optimizer, schedule, loader\."):
        samestep.load(tmp_path, world=SoloWorld(), **Script().parts)


def test_a_position_beyond_the_end_of_the_data_is_refused_before_the_model_changes(tmp_path):
    save_after(SoloWorld(), tmp_path, 3)
    script = Script(seed=2)
    script.loader = samestep.shard(TensorDataset(torch.arange(5)), batch_size=4, world=SoloWorld())

    with pytest.raises(UsageError, match="5"):
        samestep.load(tmp_path, world=SoloWorld(), **script.parts)

    assert same(script.weights, Script(seed=2).weights)
    assert same(script.optimizer.state_dict(), Script(seed=2).optimizer.state_dict())


def test_the_current_world_is_the_default(tmp_path):
    def saving(world):
        return samestep.save(tmp_path, step=1, model=network())

    assert run_ranks(saving, 2) == [tmp_path / "step-1"] * 2
    assert len(read(tmp_path / "step-1").optimizer["random"]) == 2
