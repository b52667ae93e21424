"""Activations that a loss computes itself, and losses that broadcast, are noted."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
    "probabilities": lambda out: F.binary_cross_entropy(out.sigmoid(), F.one_hot(Y).float()),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_activation_before_a_loss_that_computes_it_is_noted(noted, name):
    assert noted(lambda: train(WRONG[name])) == ["softmax-before-loss"]


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
