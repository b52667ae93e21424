"""A checkpoint is whole and unchanged, or refused by name."""

import json

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from samestep.base.errors import CheckpointError
from samestep.checkpoint.digest import weights_sha256
from samestep.checkpoint.files import whole_or_absent
from samestep.checkpoint.save import load, save


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.float64)


def test_weights_and_state_come_back_with_the_serial_keys(tmp_path):
    net = model()
    folder = save(net, tmp_path / "step-3", state={"step": 3})

    weights, state = load(folder)

    assert set(weights) == set(net.state_dict())
    assert all(torch.equal(weights[name], tensor) for name, tensor in net.state_dict().items())
    assert state["step"] == 3
    assert weights_sha256(weights) == weights_sha256(net.state_dict())


def test_tied_weights_are_saved_under_both_names(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight

    weights, _ = load(save(net, tmp_path / "tied", state={}))

    assert torch.equal(weights["0.weight"], weights["1.weight"])


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_flipped_bit_is_found(tmp_path, name):
    path = save(model(), tmp_path / "c", state={}) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match=f"{name} was damaged"):
        load(tmp_path / "c")


def test_a_missing_file_a_foreign_folder_and_a_later_format_are_refused(tmp_path):
    folder = save(model(), tmp_path / "c", state={})
    manifest = folder / "manifest.json"
    text = manifest.read_text()

    manifest.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        load(folder)
    manifest.write_text(text)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load(folder)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        load(tmp_path)


def test_a_failure_while_writing_leaves_neither_a_folder_nor_a_draft(tmp_path):
    with pytest.raises(FileNotFoundError), whole_or_absent(tmp_path / "c") as draft:
        (draft / "half").write_text((draft / "missing").read_text())

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_never_written_over(tmp_path):
    folder = save(model(), tmp_path / "c", state={"step": 1})

    with pytest.raises(CheckpointError, match="it exists already"):
        save(model(), folder, state={"step": 2})

    assert load(folder)[1]["step"] == 1


def test_a_disk_that_fills_up_is_a_checkpoint_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)

    with pytest.raises(CheckpointError, match="No space left"):
        save(model(), tmp_path / "c", state={})
    assert list(tmp_path.iterdir()) == []


def test_state_that_is_no_tensor_is_named(tmp_path):
    class Counting(nn.Module):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(CheckpointError, match="_extra_state in the state dict is a dict"):
        save(Counting(), tmp_path / "c", state={})


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        save(model(), tmp_path / "file" / "c", state={})


def test_the_digest_sees_every_bit_every_name_and_every_dtype():
    state = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    digest = weights_sha256(state)

    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({**state, "a": torch.tensor([1.0, 2.0 + 2**-22])}) != digest
    assert weights_sha256({**state, "n": torch.tensor(3, dtype=torch.int32)}) != digest
    assert weights_sha256({"b": state["a"], "n": state["n"]}) != digest
    assert weights_sha256({"a": torch.tensor([1.0], dtype=torch.bfloat16)})
