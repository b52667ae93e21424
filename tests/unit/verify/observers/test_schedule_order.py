"""A schedule that steps first is noted; resumes, warm-ups and skipped steps are not."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")


def made(kind=lr_scheduler.StepLR, **options):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, kind(optimizer, **(options or {"step_size": 3}))


def backward(model, optimizer):
    optimizer.zero_grad()
    model(X).square().mean().backward()


def each_epoch():
    model, optimizer, schedule = made()
    for _ in range(3):
        schedule.step()
        for _ in range(2):
            backward(model, optimizer)
            optimizer.step()


def each_batch():
    model, optimizer, schedule = made(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4)
    for _ in range(4):
        backward(model, optimizer)
        schedule.step()
        optimizer.step()


def after(kind=lr_scheduler.StepLR, **options):
    model, optimizer, schedule = made(kind, **options)
    for _ in range(4):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def after_one_cycle():
    after(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=9)


class Doubled(lr_scheduler.StepLR):
    """A schedule whose constructor reaches `step` through a method of its own."""

    def step(self, *args):
        super().step(*args)


def after_own():
    after(Doubled, step_size=2)


def after_sequential():
    def kind(optimizer, gamma):
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, gamma)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])

    after(kind, gamma=0.9)


def resumed():
    model, optimizer, schedule = made()
    for _ in range(3):
        schedule.step()
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def resumed_after_one():
    model, optimizer, schedule = made()
    schedule.step()
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
        schedule.step()


def to_an_epoch():
    model, optimizer, schedule = made()
    for epoch in range(3):
        schedule.step(epoch)
        backward(model, optimizer)
        optimizer.step()


def each_micro_batch():
    model, optimizer, schedule = made()
    for step in range(8):
        backward(model, optimizer)
        if step % 2:
            optimizer.step()
        schedule.step()


def first_step_overflows():
    model, optimizer, schedule = made()
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(X).square().mean() * (float("inf") if step == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


@pytest.mark.parametrize("script", [each_epoch, each_batch], ids=lambda one: one.__name__)
def test_a_schedule_that_steps_first_is_noted(noted, script):
    assert noted(script) == ["schedule-before-optimizer"]


@pytest.mark.parametrize(
    "script",
    [
        after,
        after_one_cycle,
        after_own,
        after_sequential,
        resumed,
        resumed_after_one,
        to_an_epoch,
        each_micro_batch,
        first_step_overflows,
    ],
    ids=lambda one: one.__name__,
)
def test_a_right_script_has_no_note(noted, script):
    assert noted(script) == []
