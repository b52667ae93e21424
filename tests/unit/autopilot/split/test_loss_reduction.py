"""The divisor of a loss is read from its graph."""

import pytest
import torch
from torch.nn import functional as F

from samestep.autopilot.split.loss_reduction import (
    Reduction,
    Weight,
    is_python_number,
    origin_of,
    reduction_of,
)

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


X = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
Y = torch.tensor([0, 1, 2, -100, 1, -100])


def saved(value):
    """Return the factor or divisor in the graph of a product or quotient."""
    return value.grad_fn._saved_other


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torchs_tensors_of_python_numbers_are_recognized(dtype):
    x = X.to(dtype).sum()
    for number in (2, 2.5):
        assert is_python_number(saved(x / number))
        assert is_python_number(saved(x * number))
    for factor in (
        torch.tensor(2.0, dtype=dtype),
        torch.tensor(2),
        (Y > 0).sum(),
        (Y > 0).any(),
        torch.ones(1),
    ):
        assert not is_python_number(saved(x / factor))
    assert Weight.at(saved(x / 2.5)) == Weight.of(2.5)


def test_weights_of_the_same_labels_are_equal_and_others_are_not():
    y = Y.clamp(min=0)
    other = y.clone()
    classes = torch.ones(3, dtype=torch.float64)

    def weight(*given, **more):
        return reduction_of(F.cross_entropy(X * 2, *given, **more)).weight

    assert weight(y) == weight(y)
    different = [weight(y), weight(other), weight(y, weight=classes), weight(y, ignore_index=1)]
    assert len(set(different)) == 4
    assert reduction_of(F.cross_entropy(X[:4], y[:4])).weight != weight(y)  # a part of the same memory


def test_a_weight_of_memory_that_was_written_to_is_another_one():
    counts = torch.tensor(3.0)
    before = origin_of(counts)
    assert origin_of(counts) == before
    counts.add_(1)
    assert origin_of(counts) != before


def test_products_and_reciprocals_of_weights():
    tensor = Weight.at(torch.tensor([4.0]))
    assert Weight.of(3).times(Weight.of(2)) == Weight.of(6)
    assert tensor.times(Weight.of(2)).read() == 8.0
    assert tensor.times(Weight.of(2)) == tensor.times(Weight.of(2))
    assert tensor.times(Weight.of(2)) != tensor
    assert tensor.reciprocal().read() == 0.25
    assert Weight.of(4).reciprocal() == Weight.of(0.25)
    assert Weight.of(0).reciprocal().read() == Weight.at(torch.tensor(0)).reciprocal().read() == float("inf")
    for one in (tensor, Weight.of(4)):
        found = one.on(torch.device("cpu"))
        assert (found.shape, found.dtype, found.item()) == ((), torch.float64, 4.0)


def test_terms_of_equal_origin_have_one_weight():
    same = reduction_of(F.cross_entropy(X, Y) + 0.5 * F.cross_entropy(X * 2, Y))
    assert same.further == ()
    count = (Y >= 0).sum()
    again = reduction_of(X.sum() / count + X.square().sum() / (Y >= 0).sum())
    assert len(again.further) == 1
    assert again.values() == [4.0]


def test_a_divisor_that_may_stand_for_zero_is_combined_with_none_of_another_source():
    masked = X.sum() / (Y >= 0).sum().clamp(min=1)
    numbered = X.sum() / len(Y)
    assert reduction_of(numbered + X.mean() / 2).values() == [len(Y), X.numel()]
    for loss in (masked + X.mean(), numbered + X.mean() + masked):
        assert reduction_of(loss) is None
