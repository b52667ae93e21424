"""The reduction of a scalar is the same from its graph and from its operations."""

import pytest
import torch
from torch.nn import functional as F

from samestep.autopilot.split.loss_reduction import PLAIN, Reading, read_reduction, watching_reductions

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
Y = torch.tensor([0, 1, 2, -100, 3, 1])
SETS = torch.stack([Y.abs() % 4, *torch.full((3, 6), -1)], 1)
MASK = torch.tensor([1.0, 1, 0, 1, 1, 0])
SCALE = torch.nn.Parameter(torch.tensor(0.3))
WEIGHT = torch.nn.Parameter(torch.ones(3, 3))
RECIPROCAL = Reading(multiplied=True)
PENALTY = Reading(divided=False, sums_independent=True)

CASES = {
    "ignored labels": (lambda: F.cross_entropy(X, Y), PLAIN, ("mean", 5.0)),
    "sum": (lambda: F.cross_entropy(X, Y, reduction="sum"), PLAIN, ("sum", 1.0)),
    "elements": (lambda: F.mse_loss(X, X * 2), PLAIN, ("mean", 24.0)),
    "margins": (lambda: F.multi_margin_loss(X, Y.abs() % 4), PLAIN, ("mean", 24.0)),
    "margins of sets": (lambda: F.multilabel_margin_loss(X, SETS), PLAIN, ("mean", 24.0)),
    "divided": (lambda: (X.mean(1) * MASK).sum() / MASK.sum(), PLAIN, ("mean", 4.0)),
    "multiplied": (lambda: (X.mean(1) * MASK).sum() * (1.0 / MASK.sum()), RECIPROCAL, ("mean", 4.0)),
    "constant factor": (lambda: -0.5 * X.exp().sum(), PLAIN, ("sum", 1.0)),
    "factor of a mean": (lambda: 0.5 * X.square().sum() / len(X), PLAIN, ("mean", 6.0)),
    "stacked": (
        lambda: torch.stack([F.cross_entropy(X, Y), F.cross_entropy(X * 2, Y)]).mean(),
        PLAIN,
        ("mean", 5.0),
    ),
    "penalty": (lambda: F.cross_entropy(X, Y) + WEIGHT.square().sum(), PENALTY, ("mean", 5.0)),
    "penalty taken for a sum": (lambda: F.cross_entropy(X, Y) + WEIGHT.square().sum(), PLAIN, None),
    "different weights": (lambda: F.cross_entropy(X, Y) + F.mse_loss(X, X * 2), PLAIN, None),
    "not linear": (lambda: X.mean() * X.sum(), PLAIN, None),
    "unknown": (lambda: X.flatten().logsumexp(0), PLAIN, None),
    "one sample": (
        lambda: (X[:1, :2].mean(1) * MASK[3:4]).sum() * (1.0 / MASK[3:4].sum()),
        RECIPROCAL,
        ("mean", 1.0),
    ),
    "no samples that count": (lambda: X.sum() / (MASK * 0).sum(), PLAIN, ("mean", 0.0)),
}


def read(compute, reading, *, grad):
    with torch.set_grad_enabled(grad), watching_reductions(when=not grad) as mode:
        if mode is None:
            value = compute()
        else:
            with mode:
                value = compute()
        found = read_reduction(value, reading)
    return None if found is None else (found.kind, found.weight.read())


@pytest.mark.parametrize("grad", [True, False], ids=["graph", "operations"])
@pytest.mark.parametrize("case", CASES)
def test_the_reduction_and_its_weight_are_found(case, grad):
    compute, reading, expected = CASES[case]
    assert read(compute, reading, grad=grad) == expected


def test_a_learnable_scale_of_a_loss_keeps_its_weight():
    assert read(lambda: SCALE.exp() * F.cross_entropy(X, Y) + SCALE, PLAIN, grad=True) == ("mean", 5.0)


def test_the_weights_of_selected_elements_and_others_are_compared_in_each_call():
    both = X.square().mean() + X[MASK.bool()].square().mean()
    reduction = read_reduction(both, PLAIN)
    assert reduction is not None
    assert reduction.values() == [24.0, 16.0]
    assert read(lambda: X[MASK.bool()].square().mean(), PLAIN, grad=True) == ("mean", 16.0)


def test_counts_are_sums_and_accuracies_are_means():
    assert read(lambda: (X.argmax(1) == Y).sum(), PLAIN, grad=False) == ("sum", 1.0)
    assert read(lambda: (X.argmax(1) == Y).double().mean(), PLAIN, grad=False) == ("mean", 6.0)


def test_without_observation_the_reduction_is_unknown():
    with torch.no_grad():
        assert read_reduction(F.cross_entropy(X, Y), PLAIN) is None


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    ("loss", "outer", "inner"),
    [
        (lambda: X[:1, :2].square().mean(-1).sum(), ("sum", 1.0), ("mean", 2.0)),
        (lambda: X.square().sum(1).mean(), ("mean", 6.0), ("sum", 1.0)),
        (lambda: X.square().mean(0).sum(), ("sum", 1.0), ("mean", 24.0)),
        (lambda: F.cross_entropy(X, Y).sum(), None, ("mean", 5.0)),
    ],
)
def test_either_of_two_reductions_can_be_over_the_samples(loss, outer, inner, grad):
    if outer is not None:
        assert read(loss, PLAIN, grad=grad) == outer
    assert read(loss, Reading(inner=True), grad=grad) == inner
