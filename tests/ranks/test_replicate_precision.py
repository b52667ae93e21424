"""Replicated models in mixed and low precision and in another memory format have the serial gradients."""

import copy
import functools

import pytest
import torch
from torch import nn

from samestep.parallel.gradients.replicate import accumulate, replicate
from samestep.ranks.world.thread_world import run_ranks

SHARES = [5, 3, 0]


@functools.cache
def made():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 3),
        )


@pytest.fixture(scope="module", autouse=True)
def made_before_there_are_ranks():
    made()  # ranks that are threads share the one random generator


def conv_net(dtype=torch.float32):
    return copy.deepcopy(made()).to(dtype)


def batch(dtype=torch.float32):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(8, 2, 6, 6, generator=draw).to(dtype), torch.randint(0, 3, (8,), generator=draw)


def loss_of(scores, labels, weight):
    scores = scores.float()
    return nn.functional.cross_entropy(scores, labels) * weight if len(labels) else scores.sum()


def step(model, images, labels, weight, *, autocast=None):
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        scores = model(images)
    loss_of(scores, labels, weight).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def on_rank(world, shares, *, dtype=torch.float32, autocast=None, layout=torch.contiguous_format):
    model = conv_net(dtype).to(memory_format=layout)
    images, labels = batch(dtype)
    start = sum(shares[: world.place.rank])
    stop = start + shares[world.place.rank]
    images = images.contiguous(memory_format=layout)[start:stop]
    weight = (stop - start) * world.place.size / sum(shares)
    with replicate(model, world, batch_norm="global"):
        grads = step(model, images, labels[start:stop], weight, autocast=autocast)
    return grads, dict(model.named_buffers())


def serial(**options):
    dtype, autocast = options.get("dtype", torch.float32), options.get("autocast")
    model = conv_net(dtype)
    grads = step(model, *batch(dtype), 1.0, autocast=autocast)
    return grads, dict(model.named_buffers())


def assert_close(ranks, expected, *, tolerance):
    for found in ranks:
        for got, wanted, first in zip(found, expected, ranks[0], strict=True):
            for name, value in wanted.items():
                scale = value.double().abs().max().clamp(min=1e-2)
                assert (got[name].double() - value.double()).abs().max() <= tolerance * scale, name
                assert got[name].equal(first[name]), name


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("shares", [[4, 4], SHARES], ids=str)
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-5),
        ({"autocast": torch.bfloat16}, 0.1),
        ({"autocast": torch.float16}, 0.02),
        ({"dtype": torch.bfloat16}, 0.1),
    ],
    ids=["fp32", "bf16", "fp16", "bf16-true"],
)
def test_global_batch_norm_gives_the_serial_gradients_in_every_precision(options, tolerance, shares, layout):
    ranks = run_ranks(lambda world: on_rank(world, shares, layout=layout, **options), len(shares))

    assert_close(ranks, serial(**options), tolerance=tolerance)


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    def scaled(world):
        model = conv_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        images, labels = batch()
        scales = []
        with replicate(model, world, batch_norm="local"):
            for overflows in (True, False):
                loss = loss_of(model(images), labels, 1.0)
                factor = float("inf") if overflows and world.place.rank == 1 else 1.0
                scaler.scale(loss * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                moved = any(not p.equal(before[name]) for name, p in model.named_parameters())
                scales.append((scaler.get_scale(), moved))
        return scales

    assert run_ranks(scaled, 3) == [[(2.0**9, False), (2.0**9, True)]] * 3


def test_accumulated_scaled_gradients_are_averaged_once():
    def accumulated(world):
        model = conv_net(torch.float64)
        images, labels = batch(torch.float64)
        mine = slice(4 * world.place.rank, 4 * world.place.rank + 4)
        images, labels = images[mine], labels[mine]
        with replicate(model, world, batch_norm="local"):
            model.eval()  # batch statistics of micro-batches differ
            with accumulate(model):
                (nn.functional.cross_entropy(model(images[:1]), labels[:1]) * 2 / 8).backward()
            (nn.functional.cross_entropy(model(images[1:]), labels[1:]) * 3 * 2 / 8).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    model = conv_net(torch.float64).eval()
    images, labels = batch(torch.float64)
    nn.functional.cross_entropy(model(images), labels).backward()

    for found in run_ranks(accumulated, 2):
        for name, p in model.named_parameters():
            assert (found[name] - p.grad).abs().max() < 1e-12
