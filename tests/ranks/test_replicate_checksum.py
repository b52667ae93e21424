"""Checksums detect models that differ between ranks, and the error names rank and parameter."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from samestep.base.errors import OutOfStep, UsageError
from samestep.parallel.gradients import agreement
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import network, plain, samples


def drift_of(size, rank, change, *, build=network, **options):
    """Return the message of `check` after `change` was applied to the model of one rank."""

    def on_rank(world):
        model = build()
        with replicate(model, world, **options) as replicas:
            replicas.check()
            if world.place.rank == rank:
                with torch.no_grad():
                    change(model)
            with pytest.raises(OutOfStep) as caught:
                replicas.check()
        return str(caught.value)

    (message,) = set(run_ranks(on_rank, size))
    return message


def test_with_two_ranks_the_second_one_is_named():
    message = drift_of(2, 0, lambda model: model[2].weight.add_(1e-15))
    assert re.search(r"rank 1 .*rank 0, .* 2\.weight\.", message)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_with_three_ranks_the_different_one_is_named(rank):
    message = drift_of(3, rank, lambda model: model[4].bias.neg_())
    assert re.search(rf"rank {rank} .*other 2 ranks, .* 4\.bias\.", message)


def test_a_buffer_that_differs_is_named():
    def build():
        model = network()
        model.register_buffer("average", torch.zeros(2))
        return model

    message = drift_of(2, 1, lambda model: model.average.add_(1), build=build)
    assert " average." in message


def test_running_statistics_are_compared_only_if_they_are_global():
    def build():
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))

    message = drift_of(2, 1, lambda model: model[0].running_var.add_(1), build=build, batch_norm="global")
    assert " 0.running_var." in message

    def both(model):
        model[0].running_var.add_(1)
        model[1].bias.add_(1)

    message = drift_of(2, 1, both, build=build, batch_norm="local")
    assert " 1.bias." in message


def test_a_non_persistent_buffer_may_differ():
    def on_rank(world):
        model = network()
        model.register_buffer("cache", torch.zeros(2), persistent=False)
        with replicate(model, world) as replicas:
            model.cache.fill_(world.place.rank)
            replicas.check()

    run_ranks(on_rank, 2)


def test_a_model_without_tensors_is_equal():
    def on_rank(world):
        with replicate(nn.Flatten(), world) as replicas:
            replicas.check()

    run_ranks(on_rank, 2)


def test_nan_in_the_same_places_is_equal():
    def on_rank(world):
        model = network()
        with replicate(model, world) as replicas, torch.no_grad():
            model[0].bias.fill_(float("nan"))
            replicas.check()

    run_ranks(on_rank, 2)


def test_the_check_runs_every_few_synchronizations():
    def on_rank(world):
        model = network()
        with replicate(model, world, check_every=3):
            plain(model, samples(), 1.0)
            with torch.no_grad():
                model[0].bias.add_(world.place.rank)
            plain(model, samples(), 1.0)
            with pytest.raises(OutOfStep, match=r" 0\.bias\."):
                plain(model, samples(), 1.0)

    run_ranks(on_rank, 2)


def test_a_parameter_added_later_is_reported():
    def on_rank(world):
        model = network()
        with replicate(model, world) as replicas:
            model[2].bias = nn.Parameter(torch.zeros(4))
            with pytest.raises(UsageError, match=r"parameter 2\.bias "):
                replicas.check()

    run_ranks(on_rank, 2)


tensors = st.lists(st.integers(0, 255), min_size=8, max_size=96).map(
    lambda numbers: torch.tensor(numbers[: len(numbers) // 8 * 8], dtype=torch.uint8)
)
dtypes = st.sampled_from(
    [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)


@given(tensors, dtypes, st.data())
def test_a_change_of_one_element_always_changes_the_checksum(octets, dtype, data):
    octets = octets % 2 if dtype == torch.bool else octets
    other = octets.clone()
    place = data.draw(st.integers(0, len(octets) - 1))
    other[place] = data.draw(
        st.integers(0, 1 if dtype == torch.bool else 255).filter(lambda n: n != octets[place])
    )
    assert agreement.checksum(octets.view(dtype)) != agreement.checksum(other.view(dtype))


@given(st.permutations(range(6)))
def test_the_checksum_depends_on_the_order(order):
    numbers = torch.arange(6.0)
    assert (agreement.checksum(numbers[order]) == agreement.checksum(numbers)) == (
        list(order) == list(range(6))
    )


def test_the_checksum_is_of_logical_order_and_depends_on_it_across_pieces(monkeypatch):
    numbers = torch.arange(12.0).view(3, 4)
    assert agreement.checksum(numbers.t().contiguous().t()) == agreement.checksum(numbers)
    monkeypatch.setattr(agreement, "_PIECE", 5)
    swapped = numbers.view(-1)[[5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 10, 11]]
    assert agreement.checksum(swapped) != agreement.checksum(numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_flipped_signs_do_not_cancel(dtype):
    numbers = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert agreement.checksum(-numbers) != agreement.checksum(numbers)
