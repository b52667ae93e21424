"""Calls whose code may read a state that only the main rank has are not split."""

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.refusal import refusal


class Part(nn.Module):
    def largest(self):
        return max(parameter.grad.abs().max() for parameter in self.parameters())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.part = nn.Linear(3, 3), Part()

    def grad_norm(self):
        return sum(parameter.grad.norm() for parameter in self.parameters())

    def forward(self, x):
        return self.linear(x)


class Scaling(Net):
    @property
    def scale(self):
        return self.grad_norm()

    def forward(self, x):
        return super().forward(x) * self.scale


class OfPart(Net):
    def forward(self, x):
        return super().forward(x) * self.part.largest()


class Named(Net):
    def forward(self, x):
        return super().forward(x) * getattr(self, "grad_" + "norm"[:4])()


class Scale:
    def __init__(self, model):
        self.model = model

    def now(self):
        return self.model.grad_norm()


class OfObject(Net):
    def __init__(self):
        super().__init__()
        self.scale = Scale(self)

    def forward(self, x):
        return super().forward(x) * self.scale.now()


class OfFunction(Net):
    def __init__(self):
        super().__init__()
        self.scale = lambda model: model.grad_norm()

    def forward(self, x):
        return super().forward(x) * self.scale(self)


class Differentiating(Net):
    def forward(self, x):
        (gradient,) = torch.autograd.grad(*(self.linear(x).sum(), x))
        return gradient


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [
        *((Net, False), (Scaling, True), (OfPart, True), (OfObject, True), (OfFunction, True), (Named, True)),
        (Differentiating, False),
    ],
)
def test_gradients_that_only_the_loop_of_the_script_reads_keep_no_call_whole(kind, is_refused):
    assert (refusal(kind(), torch.device("cpu")) is not None) is is_refused
