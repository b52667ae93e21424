"""The divisor of a loss is read from its graph."""

import pytest
import torch
from torch.nn import functional as F

from samestep.autopilot.split.loss_reduction import Reduction, reduction_of
from samestep.autopilot.split.reduction_weights import Weight

SCORES = torch.randn(6, 3, requires_grad=True)
LABELS = torch.tensor([0, 1, 2, -100, 1, -100])
WEIGHTS = torch.tensor([1.0, 2.0, 4.0])
TARGETS = torch.rand(6, 3)


def mean(weight):
    return Reduction("mean", Weight.of(float(weight)))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda: F.cross_entropy(SCORES, LABELS), mean(4)),
        (lambda: F.cross_entropy(SCORES, LABELS, weight=WEIGHTS), mean(1 + 2 + 4 + 2)),
        (lambda: F.cross_entropy(SCORES, LABELS, reduction="sum"), Reduction("sum")),
        (lambda: F.mse_loss(SCORES, TARGETS), mean(18)),
        (lambda: F.binary_cross_entropy_with_logits(SCORES, TARGETS), mean(18)),
        (lambda: F.smooth_l1_loss(SCORES, TARGETS, reduction="sum"), Reduction("sum")),
        (lambda: SCORES.square().mean(), mean(18)),
        (lambda: SCORES.square().sum(), Reduction("sum")),
        (lambda: SCORES.sum() / TARGETS.sum().detach().round(), mean(TARGETS.sum().round())),
        (lambda: 0.5 * F.mse_loss(SCORES, TARGETS) + 2 * SCORES.mean(), mean(18)),
        (lambda: -F.mse_loss(SCORES, TARGETS).view(1).squeeze(), mean(18)),
        (lambda: F.mse_loss(SCORES, TARGETS) / 4, mean(18)),
        (lambda: F.mse_loss(SCORES, TARGETS) + F.cross_entropy(SCORES, LABELS), None),
        (lambda: SCORES.square().sum() + SCORES.mean(), None),
        (lambda: SCORES.logsumexp((0, 1)), None),
        (lambda: SCORES.detach().mean(), None),
    ],
)
def test_the_divisor_is_known_if_all_terms_have_the_same(loss, found):
    read = reduction_of(loss())
    assert (read and (read.kind, read.weight.read())) == (found and (found.kind, found.weight.read()))
