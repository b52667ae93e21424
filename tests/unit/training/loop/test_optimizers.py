"""Optimizers take the steps of torch's, and their state belongs to the right elements."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from samestep.training.loop.learner import build_optimizer
from samestep.training.settings import Settings

OPTIONS = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"optimizer": "adamw", "weight_decay": 0.1},
]


def settings(**changes):
    return Settings(**{"epochs": 1, "batch_size": 8, "lr": 0.05, **changes})


def network(dtype=torch.float32):
    # A bias before batch norm has a gradient of nothing but rounding, which AdamW makes a step of.
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 2)
    ).to(dtype)


def torchs(model, chosen, **form):
    """Return torch's optimizer, as a script constructs it."""
    if chosen.optimizer == "adamw":
        return AdamW(model.parameters(), lr=chosen.lr, weight_decay=chosen.weight_decay, **form)
    return SGD(
        model.parameters(),
        lr=chosen.lr,
        momentum=chosen.momentum,
        nesterov=chosen.nesterov,
        weight_decay=chosen.weight_decay,
        **form,
    )


def steps(model, optimizer, count=4, *, first=0):
    for step in range(first, first + count):
        images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(images.to(model[0].weight.dtype)).square().sum().backward()
        optimizer.step()


def assert_equal_bits(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_weights_have_the_bits_of_torchs_fused_optimizer(options, dtype):
    chosen = settings(**options)
    ours, theirs = network(dtype), network(dtype)

    steps(ours, build_optimizer(ours, chosen))
    steps(theirs, torchs(theirs, chosen, fused=True))

    assert_equal_bits(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_weights_equal_those_of_torchs_default_up_to_rounding(options):
    chosen = settings(**options)
    ours, theirs = network(torch.float64), network(torch.float64)

    steps(ours, build_optimizer(ours, chosen))
    steps(theirs, torchs(theirs, chosen))

    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_half_precision_weights_follow_single_precision_within_their_rounding(options):
    chosen = settings(**options)
    ours, exact = nn.Linear(64, 64), nn.Linear(64, 64)
    exact.load_state_dict(ours.state_dict())
    ours.to(torch.bfloat16)
    optimizers = build_optimizer(ours, chosen), torchs(exact, chosen)
    for step in range(4):
        draw = torch.Generator().manual_seed(step)
        for one, other in zip(ours.parameters(), exact.parameters(), strict=True):
            other.grad = torch.randn(other.shape, generator=draw)
            one.grad = other.grad.to(torch.bfloat16)
        for optimizer in optimizers:
            optimizer.step()

    for one, other in zip(ours.parameters(), exact.parameters(), strict=True):
        largest = other.abs().max().item()  # the steps are as large: 0.05 times gradients of 1 to 3
        assert (one.float() - other).abs().max().item() < 0.05 * largest


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_state_saved_in_another_memory_layout_continues_with_equal_bits(options, layout):
    chosen = settings(**options)
    undisturbed = network().to(memory_format=layout)
    optimizer = build_optimizer(undisturbed, chosen)
    steps(undisturbed, optimizer, 2)
    resumed = copy.deepcopy(undisturbed)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        for name, value in state.items():
            if value.dim() == 4:  # whichever layout it has, it gets the other
                state[name] = relaid(value)

    again = build_optimizer(resumed, chosen)
    again.load_state_dict(saved)
    steps(undisturbed, optimizer, 2, first=2)
    steps(resumed, again, 2, first=2)

    assert_equal_bits(undisturbed, resumed)


def relaid(value):
    other = torch.contiguous_format
    if value.is_contiguous():
        other = torch.channels_last
    found = value.clone(memory_format=other)
    assert found.stride() != value.stride()
    return found


def test_a_parameter_without_a_gradient_is_not_changed():
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, settings(weight_decay=0.5))

    model[0].weight.square().sum().backward()
    optimizer.step()

    assert not torch.equal(model[0].weight, before["0.weight"])
    assert torch.equal(model[3].weight, before["3.weight"])


def test_weight_decay_applies_to_all_parameters():
    model = network()
    optimizer = build_optimizer(model, settings(weight_decay=0.25))

    assert [len(group["params"]) for group in optimizer.param_groups] == [5]
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
