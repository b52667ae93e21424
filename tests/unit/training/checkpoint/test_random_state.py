"""After a resume, random generators continue as without an interruption."""

import random

import numpy as np
import pytest
import torch

from samestep.ranks.world.protocol import SoloWorld
from samestep.training.checkpoint.random_state import (
    gather_random_state,
    random_state,
    restore_random_state,
    set_random_state,
)
from samestep.training.checkpoint.read import read
from support.snapshots import snapshot, write

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def generators():
    """Leave Python's and NumPy's generators as they were."""
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def draws():
    return [
        torch.rand(3).tolist(),
        random.random(),
        random.gauss(0, 1),  # keeps a second number for the next call
        np.random.rand(2).tolist(),
        np.random.standard_normal(),  # so does this one
    ]


def test_every_generator_continues_from_its_state_in_a_checkpoint(tmp_path):
    torch.manual_seed(1)
    draws()
    folder = write(snapshot(optimizer={"random": [random_state(CPU)]}), tmp_path / "c")
    expected = draws(), draws()
    torch.manual_seed(2)
    draws()

    set_random_state(read(folder).optimizer["random"][0], CPU)

    assert (draws(), draws()) == expected


def test_states_of_another_number_of_ranks_are_not_restored():
    states = gather_random_state(SoloWorld(), step=1)
    before = torch.get_rng_state()
    torch.rand(1)
    after = torch.get_rng_state()

    assert restore_random_state(SoloWorld(), [*states, *states]) is False
    assert torch.equal(torch.get_rng_state(), after)
    assert restore_random_state(SoloWorld(), states) is True
    assert torch.equal(torch.get_rng_state(), before)
