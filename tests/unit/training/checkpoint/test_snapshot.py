"""A checkpoint of another model is refused with its first differences, before anything changes."""

import doctest

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint import checkpoint_schedule, scripts
from samestep.training.checkpoint import snapshot as snapshots
from support.snapshots import network, snapshot


def test_equal_names_and_shapes_are_compatible():
    snapshot(average=network(1).state_dict()).check_fits(network(2, dtype=torch.float32))


@pytest.mark.parametrize("part", ["model", "average"])
def test_other_names_and_shapes_are_reported(part):
    changed = {**network().state_dict(), "0.bias": torch.zeros(7), "more": torch.zeros(1)}
    del changed["1.bias"]

    with pytest.raises(CheckpointError) as caught:
        snapshot(**{part: changed}).check_fits(network())

    assert str(caught.value) == (
        "the checkpoint belongs to another model: missing: 1.bias; unexpected: more; "
        "of another shape: 0.bias (7,), in the model (2,)."
    )


@pytest.mark.parametrize(
    "module", [snapshots, scripts, checkpoint_schedule], ids=lambda module: module.__name__
)
def test_the_examples_in_docstrings_are_correct(module):
    failed, tried = doctest.testmod(module)

    assert (failed, tried > 0) == (0, True)
