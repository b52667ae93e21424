"""Compiled models, and torch's reducer with compressed gradients, train on real processes over Gloo."""

import pytest
import torch
from torch import nn

from samestep.base.errors import UsageError
from samestep.parallel.gradients.replicate import replicate

SIZE = 2
HAS_NCCL = torch.distributed.is_nccl_available()


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(9, 1, 6, 6, generator=draw), torch.randint(0, 3, (9,), generator=draw)


def train(model, forward, *, rank=0, size=1, steps=3):
    """Train on this rank's uneven share; return losses and weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = batch()
    part = slice(-(-9 * rank // size), -(-9 * (rank + 1) // size))
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(forward(images[part]), labels[part])
        (loss * (part.stop - part.start) * size / 9).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def compiled(world, order):
    model = conv_net()
    forward = torch.compile(model, backend="aot_eager") if order == "compiled, then replicated" else model
    with replicate(model, world, batch_norm="global"):
        if order == "replicated, then compiled":
            forward = torch.compile(model, backend="aot_eager")
        return train(model, forward, rank=world.place.rank, size=SIZE)


@pytest.mark.parametrize("order", ["replicated, then compiled", "compiled, then replicated"])
def test_compiled_models_take_the_serial_steps(processes, order):
    model = conv_net()
    _, serial = train(model, model)

    for _, weights in processes.run(compiled, SIZE, order):
        assert weights.keys() == serial.keys()
        for name, value in serial.items():
            assert (weights[name].double() - value.double()).abs().max() < 1e-5, name


def compressed(world, compress):
    model = conv_net()
    with pytest.MonkeyPatch.context() as patch:  # this process of the pool serves other tests too
        patch.setattr("samestep.parallel.gradients.replicate.POWERSGD_AFTER", 2)
        with replicate(model, world, sync="ddp", batch_norm="local", compress=compress):
            return train(model, model, rank=world.place.rank, size=SIZE, steps=8)


def refused(world):
    with pytest.raises(UsageError, match=r"sync='ddp' cannot compress to bf16 here: .* Use sync='bucketed'"):
        replicate(conv_net(), world, sync="ddp", compress="bf16")


@pytest.mark.skipif(HAS_NCCL, reason="torch's reducer compresses to bf16 over Gloo too in a build with NCCL")
def test_compression_that_ddp_cannot_do_over_gloo_is_refused_before_work(processes):
    processes.run(refused, SIZE)


@pytest.mark.parametrize("compress", ["fp16", "powersgd", *(["bf16"] if HAS_NCCL else [])])
def test_ddp_compresses_gradients_and_weights_stay_equal(processes, compress):
    (losses, one), (_, other) = processes.run(compressed, SIZE, compress)
    _, whole = processes.run(compressed, SIZE, None)[0]

    assert all(one[name].equal(other[name]) for name in one if "running" not in name)
    assert not one["4.weight"].equal(whole["4.weight"])  # it was compressed
    assert losses[-1] < losses[0] / 2
