"""An empty shard has a loss of weight 0 that is finite, and gradients of 0."""

import operator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samestep
from samestep.ranks.world.thread_world import run_ranks


def losses(world):
    """Return loss, sum of floats and gradient of each step, of 5 samples in global batches of 4."""
    model = nn.Linear(1, 2)
    loader = samestep.shard(TensorDataset(torch.ones(5, 1)), batch_size=4, world=world)
    steps = []
    for (batch,) in loader:
        model.zero_grad()
        mean = nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))
        loss = mean * loader.loss_weight
        loss.backward()
        steps.append((loss.item(), mean.item() * loader.loss_weight, model.weight.grad.abs().sum().item()))
        assert float(loader.loss_weight) == len(batch) * world.size / loader.global_count
    return world.rank, steps


def test_the_loss_of_an_empty_shard_is_zero():
    for rank, (_, last) in run_ranks(losses, 2):
        if rank == 1:
            assert last == (0.0, 0.0, 0.0)
        else:
            assert all(value > 0 for value in last)


PRODUCTS = [
    *(lambda a, b: a * b, lambda a, b: b * a, torch.mul, lambda a, b: a.mul(other=b), operator.imul),
    *(lambda a, b: a * (b / 4), lambda a, b: a * (0.25 * b), lambda a, b: a * b / 4),
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_any_product_with_the_weight_of_an_empty_shard_is_zero(product):
    from samestep.training.data.sharded_loader import _EmptyShardWeight

    assert product(torch.tensor(float("nan")), _EmptyShardWeight()).item() == 0.0


def test_the_former_name_of_the_weight_warns():
    loader = samestep.shard(TensorDataset(torch.ones(4, 1)), batch_size=4)
    with pytest.warns(DeprecationWarning, match="loss_weight"):
        assert loader.weight == 1.0
