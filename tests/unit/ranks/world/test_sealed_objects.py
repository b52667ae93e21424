import pickle

import pytest
import torch

from samestep.base.errors import WorldError
from samestep.ranks.world import protected_groups
from samestep.ranks.world.protected_groups import opened, sealed

DATA = pickle.dumps({"a": [1, 2]})


def test_a_sealed_object_is_opened_with_the_same_key():
    assert opened(sealed(DATA, b"key"), b"key") == DATA


@pytest.mark.parametrize("change", [b"", DATA, sealed(DATA, b"other"), sealed(DATA, b"key")[:-1]])
def test_data_without_a_valid_seal_is_refused(change):
    with pytest.raises(WorldError):
        opened(change, b"key")


def test_a_change_of_any_byte_is_refused():
    whole = sealed(DATA, b"key")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(WorldError):
            opened(bytes(changed), b"key")


def test_a_later_torch_can_pass_further_arguments(monkeypatch):
    """As torch 2.14 does with `weights_only`."""

    def packs(value, device, group, weights_only=False):
        data = torch.frombuffer(bytearray(pickle.dumps((value, weights_only))), dtype=torch.uint8)
        return data, torch.tensor([data.numel()])

    def unpacks(tensor, size, group, weights_only=False):
        return (*pickle.loads(tensor.numpy().tobytes()[:size]), weights_only)

    monkeypatch.setattr(protected_groups, "_keys", [b"key"])
    pack, unpack = protected_groups._sealing(packs), protected_groups._opening(unpacks)

    for further, named in [((), {}), ((True,), {}), ((), {"weights_only": True})]:
        given = bool(further or named)
        data, size = pack([1], "cpu", None, *further, **named)
        assert unpack(data, size, None, *further, **named) == ([1], given, given)
