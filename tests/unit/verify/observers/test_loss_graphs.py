"""Wrong arguments of losses are noted, and the divisors of a loss are read from its graph."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.verify.observers.loss_graphs import loss_divisors

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def train(loss, outputs=3):
    model = nn.Linear(4, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(X)).backward()
        optimizer.step()


WRONG = {
    "softmax": lambda out: F.cross_entropy(out.softmax(1), Y),
    "module": lambda out: nn.CrossEntropyLoss()(nn.Softmax(dim=1)(out), Y) * 2 + out.square().mean(),
    "half": lambda out: F.cross_entropy(out.softmax(1).bfloat16(), Y),
    "nll": lambda out: F.nll_loss(out.softmax(1), Y),
    "sigmoid": lambda out: F.binary_cross_entropy_with_logits(out.sigmoid(), F.one_hot(Y).float()),
}
RIGHT = {
    "logits": lambda out: F.cross_entropy(out, Y),
    "log": lambda out: F.nll_loss(F.log_softmax(out, 1), Y),
    "log twice": lambda out: F.cross_entropy(F.log_softmax(out, 1), Y),
    "attention": lambda out: F.cross_entropy(out.softmax(1) @ torch.eye(3), Y),
    "temperature": lambda out: F.cross_entropy(out.softmax(1) / 0.1, Y),
    "scalars": lambda out: F.mse_loss(out.mean().expand(()), torch.zeros(())),
    "probabilities": lambda out: F.binary_cross_entropy(out.sigmoid(), F.one_hot(Y).float()),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_activation_before_a_loss_that_computes_it_is_noted(noted, name):
    assert noted(lambda: train(WRONG[name])) == ["softmax-before-loss"]


def test_a_note_names_the_line_of_the_backward(named_line):
    assert "loss(model(X)).backward()" in named_line(lambda: train(WRONG["softmax"]))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loss_has_no_note(noted, name):
    assert noted(lambda: train(RIGHT[name])) == []


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss], ids=lambda f: f.__name__)
def test_a_loss_that_broadcasts_is_noted(noted, loss):
    target = torch.randn(6)
    assert noted(lambda: train(lambda out: loss(out, target), 1)) == ["loss-broadcast"]
    assert noted(lambda: train(lambda out: loss(out[:, 0], target[:, None]), 1)) == ["loss-broadcast"]
    assert noted(lambda: train(lambda out: loss(out[:, 0], target), 1)) == []
    assert noted(lambda: train(lambda out: loss(out, target[:, None]), 1)) == []


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_one_output_for_several_targets_has_no_note(noted):
    assert noted(lambda: train(lambda out: F.mse_loss(out, torch.randn(6, 3)), 1)) == []


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


def test_a_node_of_the_script_that_has_a_name_of_torch_divides_by_nothing():
    """A split call has the name of the operation that has computed its output, not what that one saves."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return rows.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    for name in ("DivBackward0", "MeanBackward0", "ExpandBackward0", "MseLossBackward0"):
        Identity._backward_cls.__name__ = name
        loss = Identity.apply(torch.ones(3, 2, requires_grad=True)).sum()
        assert loss_divisors([loss]) == []
