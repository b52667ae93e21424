import pickle

import pytest

from samestep.base.errors import WorldError
from samestep.ranks.world.sealed_objects import opened, sealed

DATA = pickle.dumps({"a": [1, 2]})


def test_what_one_seals_the_other_opens():
    assert opened(sealed(DATA, b"key"), b"key") == DATA


@pytest.mark.parametrize("change", [b"", DATA, sealed(DATA, b"other"), sealed(DATA, b"key")[:-1]])
def test_what_no_rank_has_sealed_is_refused(change):
    with pytest.raises(WorldError):
        opened(change, b"key")


def test_every_byte_counts():
    whole = sealed(DATA, b"key")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(WorldError):
            opened(bytes(changed), b"key")
