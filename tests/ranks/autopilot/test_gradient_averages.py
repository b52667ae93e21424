"""Gradients of slices are averaged over all ranks, also over those that have none."""

import pytest
import torch

from samestep.autopilot.split.gradients import averages
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
