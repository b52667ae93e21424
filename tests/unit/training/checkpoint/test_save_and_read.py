"""A checkpoint is read if it is complete and unchanged, and otherwise refused with its path."""

import hashlib
import json
import os
import pickle
import shutil

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import nn

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.read import read, read_state
from samestep.training.checkpoint.save import _is_read_back
from samestep.training.checkpoint.snapshot import (
    FILES,
    MANIFEST,
    MARK,
    MODEL,
    OPTIMIZER,
    STATE,
    Seal,
    manifest_text,
    read_manifest,
)
from support.snapshots import names, network, same, snapshot, write

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
