"""The numbers by which losses divide the sums of their parts."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.verify.loss_divisors import loss_divisors

LABELS = torch.tensor([1, 2, -100, 3, -100, 0])
COUNTED = LABELS != -100


def logits():
    return torch.zeros(6, 5, requires_grad=True)


def of_each():
    return F.cross_entropy(logits(), LABELS, reduction="none")


LOSSES = {
    "labels that count": (lambda: F.cross_entropy(logits(), LABELS), [4]),
    "labels of each position": (
        lambda: F.cross_entropy(logits().view(2, 3, 5).transpose(1, 2), LABELS.view(2, 3)),
        [4],
    ),
    "elements": (lambda: F.mse_loss(logits(), torch.ones(6, 5)), [30]),
    "elements of a mean": (lambda: (logits() ** 2).mean(), [30]),
    "masked sum over a count": (lambda: (of_each() * COUNTED).sum() / COUNTED.sum(), [4]),
    "masked sum over a number": (lambda: (of_each() * COUNTED).sum() / COUNTED.sum().item(), [4]),
    "selected values": (lambda: of_each()[COUNTED].mean(), [4]),
    "a sum": (lambda: F.cross_entropy(logits(), LABELS, reduction="sum"), []),
    "a fraction": (lambda: logits().sum() / 2.5, []),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_divisor_of_a_loss_is_read_from_its_graph(name):
    loss, expected = LOSSES[name]
    assert loss_divisors([loss()]) == expected


def test_a_mode_that_dispatches_operations_changes_nothing():
    """Such modes get plain numbers in place of the tensors of numbers, which fails for a graph's own."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        loss, expected = LOSSES["masked sum over a number"]
        assert loss_divisors([loss()]) == expected


def test_a_graph_that_was_freed_has_no_divisors():
    loss = F.cross_entropy(logits(), LABELS)
    loss.backward()
    assert loss_divisors([loss]) == []
