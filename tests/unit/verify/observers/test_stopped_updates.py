"""An optimizer that changes nothing any more is noted; schedules, phases and converged trainings are not."""

import math

import pytest
import torch
from torch import nn

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


class Recorded(torch.optim.SGD):
    """An optimizer whose step does nothing after a number of steps."""

    def __init__(self, parameters, lasts, **options):
        super().__init__(parameters, **options)
        self.left = lasts

    def step(self, closure=None):
        self.left -= 1
        if self.left >= 0:
            super().step()


def train(model, optimizer, *, steps=30, after=lambda step: None, loss=lambda out: out.square().mean() + 1):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(X)).backward()
        optimizer.step()
        after(step)


def made(lasts, **options):
    model = nn.Linear(4, 2)
    return model, Recorded(model.parameters(), lasts, **{"lr": 0.01, **options})


def stops():
    train(*made(4))


def stops_with_frozen_first():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    train(model, Recorded(model.parameters(), 4, lr=0.01))


@pytest.mark.parametrize("script", [stops, stops_with_frozen_first])
def test_updates_that_stop_are_noted(noted, named_line, script):
    assert noted(script) == ["updates-stop"]
    assert "Recorded" in named_line(script) or "super().__init__" in named_line(script)


def goes_on():
    train(*made(30))


def stops_late():
    train(*made(18))


def few_steps():
    train(*made(2), steps=9)


def in_some_steps():
    model, optimizer = made(0)
    train(model, optimizer, after=lambda step: setattr(optimizer, "left", int(step % 8 == 7)))


def decays_to_zero():
    model, optimizer = made(30)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 4))
    train(model, optimizer, after=lambda step: schedule.step())


def decays_to_rounding():
    model, optimizer = made(30)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-4 ** min(step, 4))
    train(model, optimizer, after=lambda step: schedule.step())


def rounds_to_zero():
    """Zeros of a half type do not change by an update below the smallest number of that type."""
    body, bias = nn.Linear(4, 2).half(), nn.Parameter(torch.zeros(2).half())
    optimizer = torch.optim.SGD([*body.parameters(), bias], lr=0.1)
    body.register_parameter("second", bias)
    for step in range(30):
        optimizer.param_groups[0]["lr"] = 0.1 if step < 3 else 1e-9
        optimizer.zero_grad()
        outputs = body(X.half()).float()
        (outputs + (bias if step >= 3 else 0.0)).mean().backward()
        optimizer.step()


def converges():
    model, optimizer = made(40, lr=0.9)
    train(model, optimizer, steps=40, loss=lambda out: (out[:1] - 1).square().sum() / 8)


def clamped():
    """Each step moves the weights by the same amount, and the script moves them back."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.1, etas=(0.5, 1.0001), step_sizes=(0.1, 0.1))

    @torch.no_grad()
    def clamp(_):
        for parameter in model.parameters():
            parameter.data.clamp_(-0.01, 0.01)

    train(model, optimizer, after=clamp, loss=lambda out: out.sum())


def without_gradients():
    model, optimizer = made(30)
    train(model, optimizer, steps=4)
    train(model, optimizer, loss=lambda out: (out * 0).sum())


def by_closure():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20)

    def closure():
        optimizer.zero_grad()
        loss = (model(X) - X.sum(1, keepdim=True) - math.pi).square().mean()
        loss.backward()
        return loss

    for _ in range(30):
        optimizer.step(closure)


def two_phases():
    first, second = made(30), made(30)
    for model, optimizer in (first, second):
        train(model, optimizer)


@pytest.mark.parametrize(
    "script",
    [
        goes_on,
        stops_late,
        few_steps,
        in_some_steps,
        decays_to_zero,
        decays_to_rounding,
        rounds_to_zero,
        converges,
        clamped,
        without_gradients,
        by_closure,
        two_phases,
    ],
    ids=lambda script: script.__name__,
)
def test_a_right_training_has_no_note(noted, script):
    assert noted(script) == []
