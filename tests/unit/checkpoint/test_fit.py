"""A checkpoint of another model is told by its first differences, before anything changes."""

import doctest

import pytest
import torch
from torch import nn

from samestep.base.errors import CheckpointError
from samestep.checkpoint import fit, foreign, retain
from samestep.checkpoint.fit import optimizer_misfit
from support.snapshots import network, snapshot, stepped


def test_the_same_names_and_shapes_fit():
    snapshot(average=network(1).state_dict()).check_fits(network(2, dtype=torch.float32))


@pytest.mark.parametrize("part", ["model", "average"])
def test_other_names_and_shapes_are_told(part):
    weights = {**network().state_dict(), "0.bias": torch.zeros(7), "more": torch.zeros(1)}
    del weights["1.bias"]

    with pytest.raises(CheckpointError) as caught:
        snapshot(**{part: weights}).check_fits(network())

    assert str(caught.value) == (
        "the checkpoint belongs to another model: missing: 1.bias; unexpected: more; "
        "of another shape: 0.bias (7,), in the model (2,)."
    )


def test_groups_of_an_optimizer_are_compared():
    model = network()
    one = stepped(model).state_dict()
    two = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=1).state_dict()

    assert optimizer_misfit(one, one) is None
    assert optimizer_misfit(one, two) == "groups of [4] parameters, in the optimizer of [1, 1, 1, 1]"
    assert optimizer_misfit(nn.Linear(1, 1).state_dict(), one) == (
        "it is no optimizer's state: it has weight, bias"
    )


@pytest.mark.parametrize("module", [fit, foreign, retain], ids=lambda module: module.__name__)
def test_the_examples_are_true(module):
    failed, tried = doctest.testmod(module)

    assert (failed, tried > 0) == (0, True)
