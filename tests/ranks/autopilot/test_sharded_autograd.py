"""Slicing and gathering give the serial result, and its first and second derivatives."""

import pytest
import torch
from torch.autograd import grad

from samestep.autopilot.split.call_plans import ConcatenatedOutput
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.base.errors import UsageError
from samestep.ranks.world.thread_world import run_ranks


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("total", [3, 7, 8])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_gathered_slices_equal_the_batch(total, dim, dtype):
    whole = (drawn(*((total, 2) if dim == 0 else (2, total))) * 5).to(dtype)

    def there_and_back(world):
        split = BatchSplit(world, total)
        part = split.sliced(whole, dim)
        assert part.size(dim) == split.local
        return split.gathered(part, dim)

    for found in run_ranks(there_and_back, 3):
        assert torch.equal(found, whole)


def test_slices_are_gathered_if_a_rank_has_no_samples():
    whole = drawn(2, 3)

    def there_and_back(world):
        split = BatchSplit(world, 2)
        return split.gathered(split.sliced(whole, 0), 0)

    assert all(torch.equal(found, whole) for found in run_ranks(there_and_back, 3))


@pytest.mark.parametrize("total", [2, 7])
def test_slices_of_rows_without_elements_are_gathered(total):
    """Catches rows that are counted by their elements: an empty feature had more rows than the batch."""
    whole = drawn(total, 0, 3)

    def there_and_back(world):
        split = BatchSplit(world, total)
        return split.gathered(split.sliced(whole, 0), 0)

    assert all(found.shape == whole.shape for found in run_ranks(there_and_back, 3))


def function(weight, x):
    return torch.tanh(x @ weight) ** 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_first_and_second_derivatives_equal_the_serial_ones(size):
    weight, x = drawn(4, 2).requires_grad_(), drawn(7, 4, seed=1).requires_grad_()

    def losses(y, x):
        (slope,) = grad(y.sum(), x, create_graph=True)  # a gradient penalty
        return y.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()

    expected = grad(losses(function(weight, x), x), (weight, x))

    def on_each_rank(world):
        split = BatchSplit(world, 7)
        own_weight, own_x = weight.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
        y = split.gathered(function(own_weight, split.sliced(own_x, 0)), 0)
        by_weight, by_x = grad(losses(y, own_x), (own_weight, own_x))
        world.all_reduce(by_weight)
        return by_weight, by_x

    for by_weight, by_x in run_ranks(on_each_rank, size):
        torch.testing.assert_close(by_weight, expected[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(by_x, expected[1], rtol=1e-12, atol=1e-12)


def test_weighted_sums_ignore_parts_of_weight_0():
    def on_each_rank(world):
        rank = world.place.rank
        part = torch.tensor(
            float("nan") if rank == 2 else rank + 1.0, dtype=torch.float64, requires_grad=True
        )
        total = BatchSplit(world, 3).summed(part, [0.25, 0.75, 0.0][rank])
        total.backward()
        return total.item(), part.grad.item()

    assert run_ranks(on_each_rank, 3) == [(1.75, 0.25), (1.75, 0.75), (1.75, 0.0)]


@pytest.mark.parametrize("size", [2, 3])
def test_the_gradient_of_a_shared_tensor_is_the_serial_one_on_each_rank(size):
    """Only this finds a condition or a state whose gradient is summed over the ranks."""
    scale, x = drawn(4).requires_grad_(), drawn(7, 4, seed=1)
    (expected,) = grad((scale * x).square().mean(), scale)

    def on_each_rank(world):
        split = BatchSplit(world, 7)
        own = scale.detach().clone().requires_grad_()
        y = split.gathered(split.shared(own) * split.sliced(x, 0), 0)
        return grad(y.square().mean(), own)[0]

    for found in run_ranks(on_each_rank, size):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [(5, 4), (4, 5), (5, 5)])
def test_rows_that_are_no_multiple_of_the_samples_are_refused(rows):
    """Only this finds rows that a model selects, and that are cut off where a slice has more of them."""

    def on_each_rank(world):
        part = torch.ones(rows[world.place.rank], 2)
        split = BatchSplit(world, 8)
        if part.size(0) % split.local:
            with pytest.raises(UsageError):
                ConcatenatedOutput(0, (0, 1)).gather(part, split)
            return True
        return False

    assert run_ranks(on_each_rank, 2) == [number == 5 for number in rows]
