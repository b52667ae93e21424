"""Gradients of slices are summed over all ranks, also over those that have none."""

import pytest
import torch

from samestep.autopilot.split.gradients import sums
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks

DENSE = torch.arange(8.0).view(4, 2)
ROWS = (DENSE * torch.tensor([[0.0], [1.0], [0.0], [1.0]])).to_sparse(1)
LARGE = torch.arange(1.0, 70_001.0)


def summed(world, gradients):
    return sums(world, [torch.zeros(4, 2)], [gradients[world.place.rank]], frozenset({0}))[0]


@pytest.mark.parametrize("gradients", [(DENSE, None, None), (DENSE, None, ROWS), (ROWS, None, ROWS)])
def test_a_rank_without_a_gradient_of_an_embedding_counts_as_zeros(gradients):
    """Only this finds a sum over those ranks alone whose samples use the embedding."""
    expected = sum(gradient.to_dense() for gradient in gradients if gradient is not None)
    torch.testing.assert_close(run_ranks(summed, 3, gradients)[0].to_dense(), expected)


def test_weights_of_several_devices_are_not_summed_in_one_message():
    """Only this finds a model with a layer on the CPU and others on a GPU whose calls cannot be split."""
    weights = [torch.zeros(4, 2), torch.zeros(3, device="meta"), torch.zeros(2)]
    gradients = [DENSE, torch.ones(3, device="meta"), torch.ones(2)]
    found = sums(SoloWorld(), weights, gradients, frozenset())
    assert [total.device for total in found] == [weight.device for weight in weights]
    assert torch.equal(found[0], DENSE)
    assert torch.equal(found[2], torch.ones(2))


def test_gradients_come_back_in_the_order_of_their_weights_on_the_main_rank():
    """Only this finds a gradient in the place of another, or of a missing one."""
    weights = [torch.zeros(2), torch.zeros(70_000), torch.zeros(3), torch.zeros(70_000), torch.zeros(70_000)]

    def on_each_rank(world):
        rank = world.place.rank
        gradients = [torch.ones(2), LARGE * rank, None, None, LARGE if rank else None]
        return sums(world, weights, gradients, frozenset())

    main, helper = run_ranks(on_each_rank, 2)
    expected = [torch.full((2,), 2.0), LARGE, None, None, LARGE]
    assert [None if total is None else total.tolist() for total in main] == [
        None if total is None else total.tolist() for total in expected
    ]
    assert helper == [None] * len(weights)


def test_sums_of_half_precision_do_not_overflow_before_the_sum_itself_does():
    """Only this finds partial sums: a gradient scaler would skip steps that it takes on one worker."""
    gradients = [torch.full((2,), value, dtype=torch.float16) for value in (60000, 30000, -60000)]

    def on_each_rank(world):
        own = gradients[world.place.rank]
        return sums(world, [torch.zeros_like(own)], [own], frozenset())[0]

    torch.testing.assert_close(
        run_ranks(on_each_rank, 3)[0].float(), torch.full((2,), 3e4), rtol=1e-3, atol=0
    )


def test_a_sum_has_memory_of_its_own():
    """Only this finds a gradient that is the one of this rank: a clipping would change it for a later sum."""
    gradients = [torch.ones(2), LARGE.clone()]
    for total in sums(SoloWorld(), [torch.zeros(2), torch.zeros(70_000)], gradients, frozenset()):
        total.detach_()  # a view refuses it
        total.zero_()
    assert gradients[0].sum() == 2
    assert torch.equal(gradients[1], LARGE)
