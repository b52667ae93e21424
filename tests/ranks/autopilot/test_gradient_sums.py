"""Gradients of slices are summed over all ranks, also over those that have none."""

import pytest
import torch

from samestep.autopilot.split.gradients import on_all, on_main, sums
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks

DENSE = torch.arange(8.0).view(4, 2)
ROWS = (DENSE * torch.tensor([[0.0], [1.0], [0.0], [1.0]])).to_sparse(1)
LARGE = torch.arange(1.0, 70_001.0)


def summed(world, gradients):
    return sums(world, [torch.zeros(4, 2)], [gradients[world.place.rank]], frozenset({0}), add=on_all)[0]


@pytest.mark.parametrize("gradients", [(DENSE, None, None), (DENSE, None, ROWS), (ROWS, None, ROWS)])
def test_a_rank_without_a_gradient_of_an_embedding_counts_as_zeros(gradients):
    """Only this finds a sum over those ranks alone whose samples use the embedding."""
    expected = sum(gradient.to_dense() for gradient in gradients if gradient is not None)
    for total in run_ranks(summed, 3, gradients):
        torch.testing.assert_close(total.to_dense(), expected)


def test_weights_of_several_devices_are_not_summed_in_one_message():
    """Only this finds a model with a layer on the CPU and others on a GPU whose calls cannot be split."""
    weights = [torch.zeros(4, 2), torch.zeros(3, device="meta"), torch.zeros(2)]
    gradients = [DENSE, torch.ones(3, device="meta"), torch.ones(2)]
    found = sums(SoloWorld(), weights, gradients, frozenset(), add=on_main)
    assert [total.device for total in found] == [weight.device for weight in weights]
    assert torch.equal(found[0], DENSE)
    assert torch.equal(found[2], torch.ones(2))


@pytest.mark.parametrize("add", [on_all, on_main])
def test_small_and_large_gradients_come_back_in_the_order_of_their_weights(add):
    """Only this finds a large gradient, which is summed alone, in the place of another or a missing one."""
    weights = [torch.zeros(2), torch.zeros(70_000), torch.zeros(3), torch.zeros(70_000), torch.zeros(70_000)]

    def on_each_rank(world):
        rank = world.place.rank
        gradients = [torch.ones(2), LARGE * rank, None, None, LARGE if rank else None]
        return sums(world, weights, gradients, frozenset(), add=add)

    expected = [torch.full((2,), 2.0), LARGE, None, None, LARGE]
    first, second = run_ranks(on_each_rank, 2)
    for totals in [first, second] if add is on_all else [first]:
        assert [None if total is None else total.tolist() for total in totals] == [
            None if total is None else total.tolist() for total in expected
        ]
    assert add is on_all or second == [None] * len(weights)


def test_a_sum_has_memory_of_its_own():
    """Only this finds a gradient that is the one of this rank: a clipping would change it for a later sum."""
    gradients = [torch.ones(2), LARGE.clone()]
    for total in sums(
        SoloWorld(), [torch.zeros(2), torch.zeros(70_000)], gradients, frozenset(), add=on_main
    ):
        total.zero_()
    assert gradients[0].sum() == 2
    assert torch.equal(gradients[1], LARGE)
