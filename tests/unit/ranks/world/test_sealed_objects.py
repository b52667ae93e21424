import pickle

import pytest

from samestep.base.errors import WorldError
from samestep.ranks.world.sealed_objects import Seal

DATA = pickle.dumps({"a": [1, 2]})


def test_what_one_seals_the_other_opens():
    assert Seal(b"key").opened(Seal(b"key").sealed(DATA)) == DATA


@pytest.mark.parametrize("change", [b"", DATA, Seal(b"other").sealed(DATA), Seal(b"key").sealed(DATA)[:-1]])
def test_what_no_rank_has_sealed_is_refused(change):
    with pytest.raises(WorldError):
        Seal(b"key").opened(change)


def test_every_byte_counts():
    sealed = Seal(b"key").sealed(DATA)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(WorldError):
            Seal(b"key").opened(bytes(changed))


def test_without_a_key_pickles_go_as_they_are():
    assert Seal(b"").sealed(DATA) == DATA
    assert Seal(b"").opened(DATA) == DATA
