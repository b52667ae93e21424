"""Saved weights get the names of the serial script, and are loaded into any wrapper of its model."""

import argparse
import shutil

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import nn

import samestep
from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.scripts import load_weights, serial_names
from support.snapshots import network, same, snapshot, write


def weights(seed=1):
    return dict(network(seed).state_dict())


def prefixed(prefix, state=None):
    return {prefix + name: tensor for name, tensor in (state or weights()).items()}


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.module."]
)
def test_prefixes_of_wrappers_are_removed(tmp_path, prefix):
    torch.save(prefixed(prefix), tmp_path / "w.pt")
    model = network(seed=2)

    found = load_weights(tmp_path / "w.pt", model)

    assert same(found, weights())
    assert same(dict(model.state_dict()), weights())
    assert same(load_weights(str(tmp_path / "w.pt")), weights())


@given(
    names=st.sets(
        st.lists(st.sampled_from(["a", "b", "module", "weight"]), min_size=1, max_size=3).map(".".join),
        min_size=2,
    ),
    depth=st.integers(0, 2),
    data=st.data(),
)
def test_wrapping_changes_no_serial_name(names, depth, data):
    """The names of a wrapped model are those of the bare model."""

    def wrapped(name):
        parts = name.split(".")
        at = data.draw(st.integers(0, len(parts) - 1))
        return "module." * depth + ".".join([*parts[:at], "_orig_mod", *parts[at:]])

    bare = serial_names(names)
    seen = {name: wrapped(name) for name in names}
    assert serial_names(seen.values()) == {seen[name]: bare[name] for name in names}


def test_names_that_are_equal_without_their_prefixes_are_refused():
    with pytest.raises(CheckpointError, match=r"the mapping has both a and _orig_mod\.a"):
        load_weights({"a": torch.zeros(1), "_orig_mod.a": torch.zeros(1)})


def test_serial_weights_get_the_names_of_a_wrapped_model():
    model = nn.Module()
    model.module = network(2)  # as DistributedDataParallel names it

    found = load_weights(weights(), model)

    assert same(found, prefixed("module."))
    assert same(dict(model.state_dict()), prefixed("module."))


def test_a_compiled_model_loads_serial_weights():
    model = network(2)

    load_weights(weights(), torch.compile(model, backend="eager"))

    assert same(dict(model.state_dict()), weights())


def test_extra_state_is_loaded_into_its_module():
    class Counting(nn.Linear):
        calls = 0

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    saved, model = Counting(1, 1), Counting(1, 1)
    saved.calls = 3

    load_weights(prefixed("module.", saved.state_dict()), model)

    assert model.calls == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0.weight": None}, "missing: 0.weight"),
        ({"2.bias": torch.zeros(1)}, "unexpected: 2.bias"),
        ({"0.bias": torch.zeros(5)}, r"of another shape: 0\.bias \(5,\), in the model \(2,\)"),
        (dict.fromkeys(list(weights())[:4]), r"missing: 0\.weight, 0\.bias, 1\.weight and 1 more"),
        ({"0.weight": None, "x": torch.zeros(1)}, r"missing: 0\.weight; unexpected: x\.$"),
    ],
)
def test_weights_of_another_model_are_refused_in_one_line_and_change_nothing(changes, message):
    state = {name: tensor for name, tensor in {**weights(), **changes}.items() if tensor is not None}
    model = network(2)

    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(state, model)

    assert str(caught.value).startswith("the mapping does not fit this Sequential: ")
    assert "\n" not in str(caught.value)
    assert same(dict(model.state_dict()), weights(2))


def test_safetensors_and_old_pickles_are_read(tmp_path):
    safetensors.torch.save_file(prefixed("module."), tmp_path / "w.safetensors")
    torch.save(weights(), tmp_path / "w.pth", _use_new_zipfile_serialization=False)

    assert same(load_weights(tmp_path / "w.safetensors"), weights())
    assert same(load_weights(tmp_path / "w.pth"), weights())


def test_checkpoints_of_samestep_are_read_and_verified(tmp_path):
    write(snapshot(1, seed=1), tmp_path / "step-1")
    later = shutil.copytree(write(snapshot(2), tmp_path / "step-2"), tmp_path / "copy")
    (tmp_path / "step-2" / "state.json").unlink()

    with pytest.warns(UserWarning, match=r"step-2 is not used: .*state\.json is missing") as warned:
        assert same(load_weights(tmp_path), dict(snapshot(1, seed=1).model))
    assert same(load_weights(later), dict(snapshot(2).model))
    assert warned[0].filename == __file__


@pytest.mark.parametrize("contents", [b"<!DOCTYPE html>\n<html>not found</html>\n", None])
def test_a_file_with_other_contents_is_refused_in_one_line(tmp_path, contents):
    torch.save({"weight": torch.ones(1), "args": argparse.Namespace(lr=0.1)}, tmp_path / "w.pt")
    if contents is not None:
        (tmp_path / "w.pt").write_bytes(contents)

    with pytest.raises(CheckpointError, match=r"w\.pt .*weights_only=False") as caught:
        load_weights(tmp_path / "w.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_file_that_is_not_a_checkpoint_is_refused_with_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 not weights")

    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        load_weights(tmp_path / name)


def test_a_missing_file_and_a_value_without_weights_are_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")

    with pytest.raises(CheckpointError, match=r"there is no .*none\.pt"):
        load_weights(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="a list, not a state dict"):
        load_weights(tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="its key 0"):
        load_weights({0: torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"its epoch is a int.*\['epoch'\]"):
        load_weights({"epoch": 1, "generator": weights()})
    with pytest.raises(CheckpointError, match=r"its model is a dict.*\['model'\]"):
        samestep.load_weights({"model": weights()})
