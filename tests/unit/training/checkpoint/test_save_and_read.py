"""A checkpoint is read if it is complete and unchanged, and otherwise refused with its path."""

import hashlib
import json
import os
import pickle
import shutil
from collections import Counter, OrderedDict

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR, SequentialLR

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint import save
from samestep.training.checkpoint.read import read, read_state
from samestep.training.checkpoint.save import Stage, _is_read_back
from samestep.training.checkpoint.snapshot import (
    FILES,
    MANIFEST,
    MARK,
    MODEL,
    OPTIMIZER,
    STATE,
    Seal,
    Snapshot,
    manifest_text,
    read_manifest,
)
from support.snapshots import names, network, same, snapshot, stepped, write

WRITTEN = sorted(FILES - {"average.safetensors"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint that no test changes."""
    return write(snapshot(), tmp_path_factory.mktemp("written") / "step-3")


@pytest.fixture
def folder(written, tmp_path):
    """A copy to damage."""
    return shutil.copytree(written, tmp_path / "step-3")


def reseal(folder, name, data: bytes):
    """Write `data` as file `name`, with its size and checksum in the manifest."""
    (folder / name).write_bytes(data)
    seals = {**read_manifest(folder), name: Seal(len(data), hashlib.sha256(data).hexdigest())}
    (folder / MANIFEST).write_text(manifest_text(seals))


def test_all_parts_of_a_checkpoint_are_read_back(tmp_path):
    before = snapshot(average=network(seed=1).state_dict())

    after = read(write(before, tmp_path / "step-3"))

    assert same(dict(after.model), dict(before.model))
    assert same(after.optimizer, before.optimizer)
    assert same(dict(after.average), dict(before.average))
    assert after.state == {**before.state, "format": 1}


def test_without_averaged_weights_no_file_for_them_is_written(written):
    assert sorted(path.name for path in written.iterdir()) == sorted([MARK, *WRITTEN])
    assert read(written).average is None


def test_the_manifest_lists_all_other_files_with_size_and_checksum(written):
    listed = json.loads((written / MANIFEST).read_text())["files"]

    assert sorted([*listed, MANIFEST]) == WRITTEN
    for name, seal in listed.items():
        data = (written / name).read_bytes()
        assert seal == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_the_state_alone_is_read_and_verified(folder):
    assert read_state(folder)["samples"] == 12
    (folder / STATE).write_text((folder / STATE).read_text().replace("12", "13"))
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        read_state(folder)


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7), name=st.sampled_from(WRITTEN))
def test_any_flipped_bit_is_detected(written, tmp_path_factory, at, bit, name):
    folder = shutil.copytree(written, tmp_path_factory.mktemp("flipped") / "step-3")
    data = bytearray((folder / name).read_bytes())
    data[at % len(data)] ^= 1 << bit
    (folder / name).write_bytes(data)

    with pytest.raises(CheckpointError, match=str(folder / name)):
        read(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("cut", [0, 1, 2], ids=["empty", "half", "a byte less"])
def test_a_truncated_file_is_refused_with_its_name(folder, name, cut):
    size = (folder / name).stat().st_size
    os.truncate(folder / name, (0, size // 2, size - 1)[cut])

    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        read(folder)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_missing_file_is_refused_with_its_name(folder, name):
    (folder / name).unlink()

    with pytest.raises(CheckpointError, match=name):
        read(folder)


def test_an_incomplete_folder_is_refused(folder):
    (folder / MANIFEST).unlink()
    (folder / STATE).unlink()

    with pytest.raises(CheckpointError, match=r"no manifest\.json, which is written last .found: .*model"):
        read(folder)


def test_an_empty_folder_a_file_and_a_missing_path_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="found: nothing"):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/manifest\.json cannot be read: Not a directory"):
        read(tmp_path / "file")
    with pytest.raises(CheckpointError, match=f"there is no checkpoint {tmp_path}/none"):
        read(tmp_path / "none")


def test_a_later_format_is_refused_with_both_numbers(folder):
    path = folder / MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))

    with pytest.raises(CheckpointError, match=r"format 2 .* format 1"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 60_000, "is not JSON"),
        ("[1]", "has no format number"),
        ('{"format": "ours"}', "has no format number"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 0, "files": {}}', "is damaged"),
        ('{"format": 1, "files": {"a": {"bytes": 1}}}', "is damaged"),
        ('{"format": 1, "files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}', "is damaged"),
    ],
)
def test_an_invalid_manifest_is_refused(folder, text, reason):
    (folder / MANIFEST).write_text(text)

    with pytest.raises(CheckpointError, match=reason):
        read(folder)


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_a_pickle_that_would_run_code_is_refused_and_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"optimizer": Trap()}, folder / "trap.pt")
    reseal(folder, OPTIMIZER, (folder / "trap.pt").read_bytes())

    with pytest.raises(CheckpointError, match=r"optimizer\.pt is refused"):
        read(folder)
    reseal(folder, OPTIMIZER, pickle.dumps(Trap(), protocol=2))
    with pytest.raises(CheckpointError, match=r"optimizer\.pt is refused"):
        read(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE])
def test_sealed_files_with_other_contents_are_refused_with_their_name(folder, name):
    reseal(folder, name, b"has no format number")

    with pytest.raises(CheckpointError, match=f"{name} (cannot be read|is refused)"):
        read(folder)


@pytest.mark.parametrize("name", [OPTIMIZER, STATE])
def test_a_list_instead_of_a_dict_is_refused(folder, name):
    torch.save([1], folder / "list.pt")
    reseal(folder, name, (folder / "list.pt").read_bytes() if name == OPTIMIZER else b"[1]")

    with pytest.raises(CheckpointError, match=f"{name} contains a list"):
        read(folder)


def test_safetensors_reads_the_written_weights(written):
    weights = safetensors.torch.load_file(written / MODEL)

    assert same(weights, dict(snapshot().model))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.uint64,
        torch.uint32,
        torch.uint16,
        torch.complex64,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ],
    ids=str,
)
def test_weights_of_every_dtype_and_shape_are_read_back_as_from_safetensors(tmp_path, dtype):
    if not _is_read_back(dtype):
        pytest.skip(f"safetensors {safetensors.__version__} does not read {dtype}")
    weights = {
        "scalar": torch.ones(()).to(dtype),
        "none": torch.ones(0, 3).to(dtype),
        "across": torch.arange(6).reshape(2, 3).to(dtype).t(),
        "odd": torch.ones(7).to(dtype),
        "wide": torch.ones(1, dtype=torch.float64),
    }

    folder = write(snapshot(model=weights), tmp_path / "c")

    expected = safetensors.torch.save({name: tensor.contiguous() for name, tensor in weights.items()})
    loaded, ours = safetensors.torch.load(expected), read(folder).model
    assert {name: tensor.shape for name, tensor in ours.items()} == {n: t.shape for n, t in loaded.items()}
    for name, tensor in loaded.items():
        assert ours[name].dtype == tensor.dtype
        assert ours[name].tolist() == tensor.tolist()


def test_tied_weights_are_saved_under_both_names(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight

    weights = read(write(snapshot(model=net.state_dict()), tmp_path / "tied")).model

    assert torch.equal(weights["0.weight"], weights["1.weight"])


def test_a_checkpoint_of_the_same_name_is_replaced_completely(tmp_path):
    folder = write(snapshot(average=network().state_dict()), tmp_path / "step-3")

    write(snapshot(seed=1), folder)

    assert read(folder).state["seed"] == 1
    assert read(folder).average is None
    assert names(tmp_path) == ["step-3"]


def test_a_checkpoint_with_a_file_of_the_user_is_not_replaced(tmp_path):
    folder = write(snapshot(), tmp_path / "step-3")
    (folder / "notes.txt").write_text("the good one")

    with pytest.raises(CheckpointError, match=r"contains 'notes\.txt'"):
        write(snapshot(seed=1), folder)

    assert read(folder).state["seed"] == 0
    assert (folder / "notes.txt").exists()


def test_a_path_that_cannot_be_written_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*file/c: Not a directory"):
        write(snapshot(), tmp_path / "file" / "c")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*file: it is a file"):
        write(snapshot(), tmp_path / "file")
    assert names(tmp_path) == ["file"]


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
        (10**40, "a number has 41 digits"),
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
