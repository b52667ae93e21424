"""A staged copy has the state at the call, and state that cannot be read back is refused."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR, SequentialLR

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint import save
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.save import Stage
from samestep.training.checkpoint.snapshot import Snapshot
from support.snapshots import network, same, snapshot, stepped, write


def test_later_changes_of_the_state_do_not_change_a_copy():
    model = network()
    optimizer = stepped(model)
    state = {"step": 1, "list": [1, 2]}
    stage = Stage()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"].clone()

    copy = stage.take(Snapshot(model.state_dict(), {"optimizer": optimizer.state_dict()}, state))
    optimizer.step()
    state["list"].append(3)
    for group in optimizer.param_groups:
        group["lr"] = 7

    assert same(copy.model, before)
    assert torch.equal(copy.optimizer["optimizer"]["state"][0]["momentum_buffer"], momentum)
    assert copy.optimizer["optimizer"]["param_groups"][0]["lr"] == 0.1
    assert copy.state == {"step": 1, "list": [1, 2]}


def test_memory_is_reused_for_tensors_of_equal_shape():
    stage = Stage()
    first = stage.take(snapshot(model={"a": torch.zeros(3), "b": torch.zeros(3)}))
    again = stage.take(snapshot(model={"a": torch.ones(3), "b": torch.ones(4)}))

    assert again.model["a"].data_ptr() == first.model["a"].data_ptr()
    assert same(again.model, {"a": torch.ones(3), "b": torch.ones(4)})


def test_a_copy_keeps_the_memory_format():
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)

    copy = Stage().take(snapshot(model={"w": images}))

    assert copy.model["w"].stride() == images.stride()
    assert torch.equal(copy.model["w"], images)


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path):
    small = torch.zeros(1_000_000)[:3]

    folder = write(snapshot(optimizer={"part": small}), tmp_path / "c")

    assert (folder / "optimizer.pt").stat().st_size < 10_000


@pytest.mark.parametrize(
    "make",
    [
        lambda o: MultiStepLR(o, milestones=[2, 4]),
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=9),
        lambda o: SequentialLR(o, [MultiStepLR(o, [2]), MultiStepLR(o, [3])], milestones=[3]),
    ],
    ids=["multi-step", "one-cycle", "sequential"],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
def test_optimizers_and_schedules_continue_as_without_an_interruption(tmp_path, make, kind):
    def training():
        model = network()
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.1, **options)
        return model, optimizer, make(optimizer)

    def step(model, optimizer, schedule):
        model(torch.ones(4, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    first = training()
    step(*first), step(*first)
    parts = {"optimizer": first[1].state_dict(), "schedule": first[2].state_dict()}
    found = read(write(Snapshot(first[0].state_dict(), parts, {}), tmp_path / "c"))
    second = training()
    second[0].load_state_dict(found.model)
    second[1].load_state_dict(found.optimizer["optimizer"])
    second[2].load_state_dict(found.optimizer["schedule"])
    for each in (first, second):
        step(*each), step(*each), step(*each)

    assert same(dict(second[0].state_dict()), dict(first[0].state_dict()))
    assert second[2].get_last_lr() == first[2].get_last_lr()


def test_numpy_scalars_become_python_values_and_containers_keep_their_type(tmp_path):
    tree = {
        "float": np.float64(0.5),
        "half": np.float32(0.5),
        "int": np.int64(7),
        "switch": np.bool_(True),
        "text": np.str_("a"),
        "tuple": (1, None, "a"),
        "counter": Counter({3: 1}),
        "ordered": OrderedDict(b=1, a=2),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda:1"),
        "complex": 1 + 2j,
        "bytes": b"\x00\xff",
        "bool": True,
        "inf": float("inf"),
        3: "a key that is a number",
    }

    found = read(write(snapshot(optimizer=tree), tmp_path / "c")).optimizer

    assert found == tree
    plain = {name: type(found[name]) for name in ("float", "half", "int", "switch", "text")}
    assert plain == {"float": float, "half": float, "int": int, "switch": bool, "text": str}
    assert [type(found[name]) for name in ("tuple", "counter", "ordered")] == [tuple, Counter, OrderedDict]


def test_tensors_with_equal_dotted_paths_stay_distinct(tmp_path):
    tree = {"a": {"b": torch.zeros(1), 1: torch.ones(1), "1": torch.ones(1) * 2}, "a.b": torch.ones(1) * 3}

    assert same(read(write(snapshot(optimizer=tree), tmp_path / "c")).optimizer, tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"t": np.datetime64("2026-01-01")}, r"optimizer\.t is a datetime\.date"),
        ({"a": {"b": [1, np.zeros(2)]}}, r"optimizer\.a\.b\.1 is a numpy\.ndarray"),
        (
            {"f": test_numpy_scalars_become_python_values_and_containers_keep_their_type},
            r"optimizer\.f is a ",
        ),
        ({"m": nn.Linear(1, 1)}, r"optimizer\.m is a torch\.nn\.modules\.linear\.Linear"),
        ({"d": {torch.nn: 1}}, r"a key of optimizer\.d is a builtins\.module"),
        ({"s": torch.eye(2).to_sparse()}, r"optimizer\.s is a torch\.sparse_coo tensor on cpu"),
    ],
)
def test_a_value_that_cannot_be_read_back_is_refused_with_its_path(tree, message):
    with pytest.raises(CheckpointError, match=message):
        Stage().take(snapshot(optimizer=tree))


def test_extra_state_that_is_not_a_tensor_is_refused():
    class Counting(nn.Module):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(CheckpointError, match="_extra_state in the state dict of the model is a dict, not"):
        Stage().take(snapshot(model=Counting().state_dict()))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(1), "a Tensor"),
        ({1: 2.0}, "the key 1"),
        ([({"a": {None: 1}},)], "the key None"),
        (np.complex64(1), "a complex64"),
    ],
)
def test_state_that_json_does_not_preserve_is_refused_with_its_name(value, why):
    with pytest.raises(CheckpointError, match=rf"best=.*JSON \({why}"):
        Stage().take(snapshot(state={"step": 1, "best": value}))


def test_numpy_scalars_in_the_state_become_python_values_and_tuples_become_lists():
    given = {
        "a": np.float32(0.5),
        "b": [np.int64(3), np.bool_(False)],
        "c": {"d": (1, 2)},
        "e": np.float64(2),
    }

    found = Stage().take(snapshot(state=given)).state

    assert same(found, {"a": 0.5, "b": [3, False], "c": {"d": [1, 2]}, "e": 2.0})


@pytest.mark.parametrize("part", ["model", "average"])
def test_a_dtype_that_cannot_be_read_back_is_refused_before_tensors_are_copied(part, monkeypatch):
    stage = Stage()
    copy = stage.take(snapshot(model={"z": torch.zeros(1)}))

    with pytest.raises(CheckpointError, match=rf"{part}\.y is a torch\.complex128"):
        stage.take(snapshot(**{part: {"z": torch.ones(1), "y": torch.zeros(1, dtype=torch.complex128)}}))
    monkeypatch.setattr(save, "_is_read_back", lambda dtype: dtype != torch.uint16)  # as safetensors 0.4
    with pytest.raises(
        CheckpointError, match=rf"{part}\.y is a torch\.uint16, which safetensors \d.* does not"
    ):
        stage.take(snapshot(**{part: {"y": torch.zeros(1, dtype=torch.uint16)}}))

    assert copy.model["z"] == 0


def test_readable_dtypes_depend_on_the_installed_safetensors(monkeypatch):
    def older(data):
        raise KeyError("F32")

    assert save._is_read_back.__wrapped__(torch.float32)
    monkeypatch.setattr(safetensors.torch, "load", older)
    assert not save._is_read_back.__wrapped__(torch.float32)
