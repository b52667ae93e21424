"""Compressed gradients are rounded to their dtype and equal on all ranks; nothing else is compressed."""

import copy

import pytest
import torch
from torch import nn

from samestep.base.errors import UsageError
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import gradients, network, plain, samples, share_of

EPS = {"fp16": torch.finfo(torch.float16).eps, "bf16": torch.finfo(torch.bfloat16).eps}


def build(dtype):
    return network(dtype=dtype)


def before_and_after(world, shares, compress, dtype):
    """Return this rank's gradients before averaging and after it."""
    inputs, weight = share_of(world, samples(), shares)
    alone = build(dtype)
    plain(alone, inputs.to(dtype), weight)
    model = build(dtype)
    with replicate(model, world, compress=compress, bucket_bytes=80):
        plain(model, inputs.to(dtype), weight)
    return gradients(alone), gradients(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shares", [[4, 3], [3, 2, 2], [4, 3, 0]], ids=str)
@pytest.mark.parametrize("compress", ["fp16", "bf16"])
def test_averages_have_the_rounding_error_of_their_type_and_are_equal_on_all_ranks(compress, shares, dtype):
    ranks = run_ranks(before_and_after, len(shares), shares, compress, dtype)
    size = len(shares)
    changed = 0

    for name in ranks[0][0]:
        parts = torch.stack([before[name].double() for before, _ in ranks]) / size
        # Each part is rounded once, and each partial sum; none is larger than the sum of the magnitudes.
        bound = parts.abs().sum(0) * EPS[compress] * size + torch.finfo(torch.float16).tiny
        for _, after in ranks:
            error = (after[name].double() - parts.sum(0)).abs()
            assert (error <= bound).all()
            assert after[name].dtype is dtype
            assert after[name].equal(ranks[0][1][name])
            changed += int((error > 0).sum())
    assert changed  # so they were compressed


def test_an_overflow_on_one_rank_is_infinite_on_all():
    def on_rank(world):
        model = nn.Linear(2, 1, bias=False)
        with replicate(model, world, compress="fp16"):
            model(torch.ones(1, 2)).sum().mul(1e6 if world.place.rank == 1 else 1.0).backward()
        return model.weight.grad

    for grad in run_ranks(on_rank, 3):
        assert torch.isinf(grad).all()


def test_running_statistics_are_not_compressed():
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def statistics(world, compress):
        model = copy.deepcopy(made)
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(world.place.rank))
        with replicate(model, world, batch_norm="local", compress=compress):
            model(inputs).pow(2).mean().backward()
        return dict(model.named_buffers())

    for whole, compressed in zip(
        run_ranks(statistics, 2, None), run_ranks(statistics, 2, "bf16"), strict=True
    ):
        assert all(compressed[name].equal(value) for name, value in whole.items())


def test_a_gradient_of_the_same_size_is_not_compressed():
    """Its values are beyond the range of the other type."""

    def on_rank(world, compress):
        model = network(dtype=torch.bfloat16)
        inputs, weight = share_of(world, samples(), [4, 3])
        with replicate(model, world, compress=compress):
            plain(model, inputs.bfloat16(), 1e7 * weight)
        return gradients(model)

    whole, asked = run_ranks(on_rank, 2, None)[0], run_ranks(on_rank, 2, "fp16")[0]

    assert all(asked[name].equal(value) for name, value in whole.items() if value is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compress": "zip"}, "compress='zip'.* fp16, bf16, powersgd"),
        ({"compress": "fp16", "sync": "reference"}, "compress='fp16'.* sync='bucketed' or 'ddp'"),
        ({"compress": "powersgd"}, "compress='powersgd'.* sync='ddp'"),
    ],
)
def test_unsupported_compression_is_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        replicate(network(), SoloWorld(), **options)
