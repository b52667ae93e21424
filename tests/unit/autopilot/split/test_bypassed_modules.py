"""Captured calls stay unsplit, and weights that are no parameters are found from the losses."""

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from samestep.autopilot.split.bypassed_modules import CAPTURED, obstacle, plain_weights


def test_a_captured_call_is_unsplit(monkeypatch):
    """The test replaces torch's functions that report a capture: there is no device."""
    assert obstacle() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert obstacle() == CAPTURED


def test_an_iterator_of_losses_is_left_to_the_backward_and_so_is_an_edge():
    """Only this catches a script whose first backward gives no gradients, or raises."""
    weight, plain = nn.Parameter(torch.ones(3)), torch.ones(4, requires_grad=True)
    losses = [weight.sum(), plain.sum()]
    assert plain_weights(losses) == plain_weights(tuple(losses)) == ["[4]"]
    assert plain_weights(losses[1]) == ["[4]"]
    iterator = iter(losses)
    assert plain_weights(iterator) == []
    assert len([*iterator]) == 2
    edge = get_gradient_edge(losses[1])
    assert plain_weights(edge) == plain_weights([edge]) == []
