"""A checkpoint with correct checksums and arbitrary contents is read, or refused in one line."""

import json
import os
import zipfile

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.snapshot import MANIFEST, OPTIMIZER, STATE
from support.malformed_checkpoints import reseal, try_one, whole_checkpoint
from support.snapshots import snapshot, write


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_with_random_contents_are_read_or_refused_in_one_line(tmp_path):
    whole = whole_checkpoint(tmp_path)

    refused = [try_one(whole, tmp_path / "odd", seed) for seed in range(120)]

    assert 20 < sum(refused) < 120


@pytest.fixture
def folder(tmp_path):
    return write(snapshot(), tmp_path / "step-3")


def repeated(depth):
    """Return nested lists that expand to 10 to the power of `depth` values."""
    value = [0]
    for _ in range(depth):
        value = [value] * 10
    return value


def cyclic():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1).expand(10**6),
        lambda: torch.zeros(2, 2).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: repeated(12),
        cyclic,
        lambda: {1, 2},
    ],
    ids=["repeated numbers", "sparse", "no data", "repeated lists", "a loop", "a set"],
)
def test_values_that_no_checkpoint_contains_are_refused(folder, tmp_path, make):
    torch.save({"optimizer": {"v": make()}}, tmp_path / "odd.pt")
    reseal(folder, OPTIMIZER, (tmp_path / "odd.pt").read_bytes())

    with pytest.raises(CheckpointError, match=OPTIMIZER):
        read(folder)


def test_a_compressed_archive_is_refused(folder, tmp_path):
    torch.save({"v": torch.zeros(10**6)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "odd.pt", "w") as odd:
        for record in plain.infolist():
            odd.writestr(record.filename, plain.read(record), zipfile.ZIP_DEFLATED)
    reseal(folder, OPTIMIZER, (tmp_path / "odd.pt").read_bytes())

    with pytest.raises(CheckpointError, match=OPTIMIZER):
        read(folder)


@pytest.mark.parametrize("text", ['{"step": 3, "step": 4}', '{"step": ' + "9" * 100 + "}", "[" * 10_000])
def test_a_state_with_duplicate_keys_huge_numbers_or_deep_nesting_is_refused(folder, text):
    reseal(folder, STATE, text.encode())

    with pytest.raises(CheckpointError, match=STATE):
        read(folder)


@pytest.mark.parametrize("name", [MANIFEST, STATE, OPTIMIZER])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_a_fifo_device_or_folder_in_place_of_a_file_is_refused(folder, name, kind):
    (folder / name).unlink()
    if kind == "fifo":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()

    with pytest.raises(CheckpointError, match=name):
        read(folder)


@pytest.mark.parametrize(
    "bad", [{"bytes": "5"}, {"bytes": -1}, {"bytes": True}, {"bytes": 2**70}, {"sha256": 5}]
)
def test_a_manifest_with_invalid_sizes_or_checksums_is_refused(folder, bad, monkeypatch):
    from samestep.training.checkpoint.snapshot import manifest_text

    listed = json.loads((folder / MANIFEST).read_text())["files"]
    listed[STATE] |= bad
    monkeypatch.setattr("samestep.training.checkpoint.snapshot.asdict", lambda entry: entry)
    (folder / MANIFEST).write_text(manifest_text(listed))
    monkeypatch.undo()

    with pytest.raises(CheckpointError, match=MANIFEST):
        read(folder)
