"""Means of slices become the mean of the batch, in value and gradient, also where slices have no weight."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samestep.autopilot.split.call_plans import ReducedOutput, ReplicatedOutput
from samestep.autopilot.split.loss_reduction import PLAIN, Reading
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.base.errors import UsageError
from samestep.ranks.world.thread_world import run_ranks

D = torch.float64
RECIPROCAL, INNER = Reading(multiplied=True), Reading(inner=True)
CLASSES = torch.tensor([0.0, 0.5, 2.0, 3.0], dtype=D)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def masked(scores, y):
    counts = (y >= 0).to(scores.dtype)
    return (F.cross_entropy(scores, y, reduction="none") * counts).sum(), counts.sum()


def two_masked(scores, y):
    counts = (y >= 0).to(scores.dtype)
    sums = [(each * counts).sum() for each in (scores.square().sum(1), scores.abs().sum(1))]
    return [one / counts.sum() for one in sums]


def of_each_feature(scores, y):
    counts = (y >= 0).to(scores.dtype)
    return (scores.square() * counts[:, None]).sum(0) / counts.sum()


LOSSES = {
    "ignored labels": (lambda s, y: F.cross_entropy(s, y), PLAIN),
    "a factor": (lambda s, y: 3 * F.cross_entropy(s, y) / 2 - 1, PLAIN),
    "class weights": (lambda s, y: F.cross_entropy(s, y, weight=CLASSES.to(s.dtype)), PLAIN),
    "class weights and a factor": (
        lambda s, y: 0.5 * F.cross_entropy(s, y, weight=CLASSES.to(s.dtype)),
        PLAIN,
    ),
    "divided by a mask": (lambda s, y: masked(s, y)[0] / masked(s, y)[1], PLAIN),
    "times a reciprocal": (lambda s, y: masked(s, y)[0] * (1.0 / masked(s, y)[1]), RECIPROCAL),
    "elements": (lambda s, y: F.mse_loss(s, s.detach() * y[:, None]), PLAIN),
    "two losses of the same labels": (
        lambda s, y: F.cross_entropy(s, y) + F.cross_entropy(2 * s, y) / 3,
        PLAIN,
    ),
    "selected elements": (lambda s, y: s[y >= 0].square().mean(), PLAIN),
    "of rows by their number, and elements": (
        lambda s, y: s[torch.arange(len(y))].square().mean() + F.mse_loss(s, s.detach() * y[:, None]) / 4,
        PLAIN,
    ),
    "divided by the number of samples, and elements": (
        lambda s, y: s.square().sum() / len(y) + 3 * s.abs().mean(),
        PLAIN,
    ),
    "the sum of stacked losses": (lambda s, y: torch.stack(two_masked(s, y)).sum(), PLAIN),
    "the mean of stacked losses": (lambda s, y: torch.stack(two_masked(s, y)).mean() * 3, PLAIN),
    "the sum over features of means": (lambda s, y: of_each_feature(s, y).sum(), INNER),
    "the mean over features of means": (lambda s, y: of_each_feature(s, y).mean(), INNER),
}
# Losses whose factor is 0: their weight is 1 / 0.
ZEROS = {
    "a tensor": lambda s, y: masked(s, y)[0] * torch.zeros((), dtype=D),
    "a number": lambda s, y: masked(s, y)[0] * 0.0,
    "a reciprocal": lambda s, y: masked(s, y)[0] * (torch.zeros((), dtype=D) / masked(s, y)[1]),
    "a reciprocal, and a term": lambda s, y: (
        masked(s, y)[0] * (torch.zeros((), dtype=D) / masked(s, y)[1]) + 1
    ),
    "zeros of both signs": lambda s, y: (
        masked(s, y)[0] * (torch.zeros((), dtype=D) / (masked(s, y)[1] - 2.5))
    ),
    "two terms": lambda s, y: (
        masked(s, y)[0] * (torch.zeros((), dtype=D) / masked(s, y)[1])
        + masked(2 * s, y)[0] * (torch.zeros((), dtype=D) / masked(s, y)[1])
    ),
}
LABELS = {
    "all": [0, 1, 2, 3, 1, 2, 3],
    "none in the first slices": [-100, -100, -100, -100, 1, 2, 3],
    "one": [-100, -100, -100, -100, -100, -100, 3],
    "of a class without weight first": [0, 0, 0, 0, 1, 2, 3],
}


def serial(loss, y, dtype=D):
    """Return the loss of the whole batch, and the gradients of the weights."""
    weight = drawn(5, 4, seed=1).to(dtype).requires_grad_()
    value = loss((drawn(len(y), 5).to(dtype) @ weight), y)
    (0.7 * value).backward()
    return value.detach(), weight.grad


def on_ranks(loss, reading, y, size, dtype=D):
    """Return what `serial` returns, from slices."""

    def on_rank(world):
        split = BatchSplit(world, len(y))
        weight = nn.Parameter(drawn(5, 4, seed=1).to(dtype))
        own = slice(split.start, split.start + split.local)
        part = loss(drawn(len(y), 5).to(dtype)[own] @ weight, y[own])
        value = ReducedOutput(reading).gather(part, split)
        assert value.dtype == dtype
        (0.7 * value).backward()
        world.all_reduce(weight.grad)
        return value.detach(), weight.grad

    return run_ranks(on_rank, size)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_one_rank(name, labels, size):
    loss, reading = LOSSES[name]
    y = torch.tensor(LABELS[labels])
    expected = serial(loss, y)
    assert expected[0].isfinite()
    for found in on_ranks(loss, reading, y, size):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("labels", ["all", "none in the first slices", "one"])
@pytest.mark.parametrize("name", ZEROS)
def test_a_factor_that_is_zero_gives_what_it_gives_on_one_rank(name, labels, size):
    y = torch.tensor(LABELS[labels])
    expected = serial(ZEROS[name], y)
    assert expected[0] == ("and a term" in name)
    for found in on_ranks(ZEROS[name], RECIPROCAL, y, size):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "reading"),
    [(lambda s, n: s.sum() * n, RECIPROCAL), (lambda s, n: s.sum() / n, PLAIN)],
    ids=["factor", "divisor"],
)
def test_a_factor_that_is_nan_on_some_ranks_is_refused(loss, reading):
    def on_rank(world, factors):
        part = loss(drawn(3).requires_grad_(), torch.tensor(factors[world.place.rank], dtype=D))
        try:
            return ReducedOutput(reading).gather(part, BatchSplit(world, 6)).item()
        except UsageError as error:
            return str(error)

    found = run_ranks(lambda world: on_rank(world, [math.nan, 2.0]), 2)
    assert "NaN on some workers" in found[0]
    assert found[0] == found[1]
    assert all(math.isnan(one) for one in run_ranks(lambda world: on_rank(world, [math.nan] * 2), 2))


@pytest.mark.parametrize(
    ("name", "reading"),
    [("ignored labels", PLAIN), ("divided by a mask", PLAIN), ("selected elements", PLAIN)],
)
def test_a_batch_without_any_label_gives_what_it_gives_on_one_rank(name, reading):
    y = torch.full((7,), -100)
    expected = serial(LOSSES[name][0], y)
    assert expected[0].isnan()
    for found in on_ranks(LOSSES[name][0], reading, y, 2):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_means_of_lower_precision_are_rounded_once(dtype, tolerance):
    loss, reading = LOSSES["ignored labels"]
    y = torch.tensor(LABELS["none in the first slices"])
    value, gradient = serial(loss, y)
    for found, own in on_ranks(loss, reading, y, 3, dtype):
        torch.testing.assert_close(found.to(D), value, rtol=tolerance, atol=0)
        torch.testing.assert_close(own.to(D), gradient, rtol=0, atol=2 * tolerance)


def test_the_mean_can_be_differentiated_twice():
    def penalty(gather, x):
        (gradient,) = torch.autograd.grad(gather((x**3).mean()), x, create_graph=True)
        return gradient

    x = drawn(6)
    whole = penalty(lambda value: value, x.clone().requires_grad_())

    def on_rank(world):
        split = BatchSplit(world, 6)
        own = x[split.start : split.start + split.local].clone().requires_grad_()
        gradient = penalty(lambda value: ReducedOutput(PLAIN).gather(value, split), own)
        (second,) = torch.autograd.grad(gradient.sum(), own)
        return gradient, second, split.start

    for gradient, second, start in run_ranks(on_rank, 4):
        own = slice(start, start + len(gradient))
        torch.testing.assert_close(gradient, whole[own])
        torch.testing.assert_close(second, x[own])


def test_complex_means():
    z = torch.complex(drawn(5), drawn(5, seed=1))

    def on_rank(world):
        split = BatchSplit(world, 5)
        part = z[split.start : split.start + split.local].clone().requires_grad_().mean()
        return ReducedOutput(PLAIN).gather(part, split).detach()

    for found in run_ranks(on_rank, 2):
        torch.testing.assert_close(found, z.mean())


def test_gradients_of_samples_through_an_output_without_weight_leave_those_of_another():
    y = torch.tensor(LABELS["none in the first slices"])

    def on_rank(world):
        split = BatchSplit(world, 7)
        weight = nn.Parameter(drawn(5, 4, seed=1))
        own = slice(split.start, split.start + split.local)
        each = 2 * (drawn(7, 5)[own] @ weight).square().sum(1)
        counts = (y[own] >= 0).to(D)
        masked_mean = ReducedOutput(PLAIN).gather((each * counts).sum() / counts.sum(), split)
        (masked_mean + ReducedOutput(PLAIN).gather(each.mean(), split)).backward()
        world.all_reduce(weight.grad)
        return weight.grad

    def whole(s, y):
        each, counts = 2 * s.square().sum(1), (y >= 0).to(D)
        return (each * counts).sum() / counts.sum() + each.mean()

    expected = serial(whole, y)[1] / 0.7
    for found in run_ranks(on_rank, 2):
        torch.testing.assert_close(found, expected)


def gathered(parts, make, size):
    """Return the errors of the ranks that gather the losses of their slices."""

    def on_rank(world):
        split = BatchSplit(world, sum(map(len, parts)))
        part = make(parts[world.place.rank].clone().requires_grad_())
        try:
            ReducedOutput(PLAIN).gather(part, split)
        except UsageError as error:
            return str(error)
        return ""

    return run_ranks(on_rank, size)


def two_means(x):
    return x.square().mean() + x[:, : 1 + int(x[0, 0] > 0)].abs().mean()


def test_means_with_weights_that_are_not_proportional_are_refused_on_all_ranks():
    x = drawn(6, 3).abs()
    assert gathered([x[:4], x[4:]], two_means, 2) == ["", ""]
    one, other = gathered([x[:4], -x[4:]], two_means, 2)
    assert "different numbers of elements" in one
    assert one == other


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex128])
def test_replicated_outputs_that_differ_are_refused_on_all_ranks(dtype):
    value = (drawn(4, 3) * 5).to(dtype)
    swapped = value.clone()
    swapped[0], swapped[1] = value[1], value[0]
    swapped[0, 0] = value[0, 0] == 0

    def on_rank(world, values):
        try:
            return ReplicatedOutput().gather(values[world.place.rank], BatchSplit(world, 5)).shape
        except UsageError as error:
            return str(error)

    assert run_ranks(lambda world: on_rank(world, [value, value.clone(), value]), 3) == [(4, 3)] * 3
    found = run_ranks(lambda world: on_rank(world, [value, value, swapped]), 3)
    assert "did not depend on its samples" in found[0]
    assert len(set(found)) == 1


def test_replicated_outputs_may_differ_by_rounding():
    value = drawn(100).float()

    def on_rank(world):
        own = value if world.place.is_main else value + 1e-7 * value.abs().mean()
        return ReplicatedOutput().gather(own, BatchSplit(world, 5)) is own

    assert run_ranks(on_rank, 2) == [True, True]


def test_a_script_may_write_to_the_gathered_loss():
    def on_rank(world):
        split = BatchSplit(world, 6)
        own = drawn(6)[split.start : split.start + split.local].clone().requires_grad_()
        loss = ReducedOutput(PLAIN).gather(own.square().mean(), split)
        loss /= 4
        loss += 1
        loss.backward()
        metric = ReducedOutput(PLAIN).gather(own.mean(), split).detach()
        metric += loss
        return loss.item(), own.grad - own.detach() / 12

    for value, difference in run_ranks(on_rank, 2):
        assert value == pytest.approx(drawn(6).square().mean().item() / 4 + 1)
        torch.testing.assert_close(difference, torch.zeros(3, dtype=D))
