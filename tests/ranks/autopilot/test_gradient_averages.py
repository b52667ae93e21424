"""Gradients of slices are averaged over all ranks, also over those that have none."""

import pytest
import torch

from samestep.autopilot.split.gradients import averages
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks

DENSE = torch.arange(8.0).view(4, 2)
ROWS = (DENSE * torch.tensor([[0.0], [1.0], [0.0], [1.0]])).to_sparse(1)


def averaged(world, gradients):
    return averages(world, [torch.zeros(4, 2)], [gradients[world.place.rank]], frozenset({0}))[0]


@pytest.mark.parametrize("gradients", [(DENSE, None, None), (DENSE, None, ROWS), (ROWS, None, ROWS)])
def test_a_rank_without_a_gradient_of_an_embedding_counts_as_zeros(gradients):
    """Only this finds a mean over those ranks alone whose samples use the embedding."""
    expected = sum(gradient.to_dense() for gradient in gradients if gradient is not None) / 3
    for average in run_ranks(averaged, 3, gradients):
        torch.testing.assert_close(average.to_dense(), expected)


def test_weights_of_several_devices_are_not_averaged_in_one_message():
    """Only this finds a model with a layer on the CPU and others on a GPU whose calls cannot be split."""
    weights = [torch.zeros(4, 2), torch.zeros(3, device="meta"), torch.zeros(2)]
    gradients = [DENSE, torch.ones(3, device="meta"), torch.ones(2)]
    found = averages(SoloWorld(), weights, gradients, frozenset())
    assert [average.device for average in found] == [weight.device for weight in weights]
    assert torch.equal(found[0], DENSE)
    assert torch.equal(found[2], torch.ones(2))
